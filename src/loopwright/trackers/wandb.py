"""A tracker that sends a run to Weights & Biases."""

from __future__ import annotations

import html
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ..metrics.media import Images, Media
from .track import Track
from .tracker import EndState, TrackedRow, TrackedRun, converted, converted_image

CODES: dict[EndState, int] = {"finished": 0, "stopped": 0, "interrupted": 130, "failed": 1}
FLUSH_SECONDS = 1.0
BLOCK = 32768  # bytes of an offline file


class WandB(Track):
    """Sends a run to Weights & Biases: metrics over steps, images, histograms, tables, texts (as
    HTML), the config.

    A run that is resumed from its run directory goes on under the same id, and steps that were sent
    before are not sent again. With `mode="offline"` nothing leaves the machine: `wandb sync FOLDER`
    sends it later.

    Args:
        project: The project. Default: what the environment says, or wandb's own.
        name: The name of the run. Default: that of the run, where it has a directory.
        mode: "online", "offline" or "disabled". Default: the variable WANDB_MODE, or online.
        folder: Where wandb makes its folder `wandb`. Default: the run's directory, or here without
            one.
        every: Send every n-th step only; wandb takes about half a millisecond for each. Epochs are
            all sent.
        options: Other arguments of `wandb.init` by name, such as `entity` and `tags`.

    >>> from loopwright.trackers import WandB
    >>> WandB("my-project", mode="offline", options={"entity": "me"}).every
    1
    """

    package = "wandb"

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        folder: str | Path | None = None,
        every: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        given = {"project": project, "name": name, "mode": mode, **(options or {})}
        super().__init__(WandBRun(given, folder), every=every)


class WandBRun:
    """The tracker behind `WandB`."""

    def __init__(self, options: dict[str, Any], folder: str | Path | None) -> None:
        self.options = options
        self.folder = None if folder is None else Path(folder)
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        noted = run.memory.get("id")
        if not run.is_resumed or not isinstance(noted, str):
            noted = run.memory["id"] = uuid4().hex[:12]  # not of a generator that training uses
        folder = self.folder or run.folder or Path()
        folder.mkdir(parents=True, exist_ok=True)
        files = (folder / "wandb").glob(f"offline-run-*-{noted}/run-{noted}.wandb")
        if steps := [last_step(file.read_bytes()) for file in files]:
            run.keep_written(max(steps))
        named = {} if run.folder is None else {"name": run.name}
        tags = {"tags": list(run.tags)} if run.tags else {}
        given = {key: value for key, value in self.options.items() if value is not None}
        options = {"settings": _settings(), **named, **tags, **given, "config": dict(run.config)}
        place = str(folder.absolute())
        self._run = import_module("wandb").init(
            dir=place, id=noted, resume="allow", reinit="create_new", **options
        )

    def log(self, rows: Sequence[TrackedRow]) -> None:
        for row in rows:
            self._run.log({**row.progress, **row.values}, step=row.step)

    def log_media(self, media: Media) -> None:
        wandb = import_module("wandb")
        content = media.content
        value: Any
        if isinstance(content, Images):
            pairs = zip(content.files, content.captions, strict=True)
            value = [converted_image(wandb, file, caption) for file, caption in pairs]
        elif isinstance(content, str):
            value = wandb.Html(f"<pre>{html.escape(content)}</pre>", inject=False)
        else:
            value = converted(wandb, content)
        # the same name at the same step would replace what was logged before
        again = f"/{media.position + 1}" if media.position else ""
        self._run.log({f"{media.name}{again}": value}, step=media.step)

    def finish(self, state: EndState, reason: str | None) -> None:
        run = self._run
        self._run = None
        run.summary["state"] = state
        if reason is not None:
            run.summary["reason"] = reason
        run.finish(exit_code=CODES[state])


def _settings() -> Any:
    """Settings by which wandb writes its file every second: a process that is killed loses what is
    not written yet."""
    settings = import_module("wandb").Settings
    name = "x_transaction_log_flush_interval"
    return settings(**{name: FLUSH_SECONDS}) if name in settings.model_fields else settings()


def last_step(content: bytes) -> int:
    """The last step in an offline file, which may lack its end.

    It is a log of blocks: after a checksum, a piece of a record has its length and its kind, which
    is 1 for a whole record and 4 for the last piece of one.
    """
    found = 0
    at = 7
    record = b""
    while at + 7 <= len(content):
        if (left := BLOCK - at % BLOCK) < 7:  # no piece begins there
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(content):
            read = import_module("wandb.proto.wandb_internal_pb2").Record.FromString(record)
            found = max(found, read.history.step.num)
            record = b""
    return found
