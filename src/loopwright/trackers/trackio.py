"""A tracker that writes a run to Trackio's local database, or sends it to a Space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any
from uuid import uuid4

from ..metrics.media import Images, Media
from .track import Track
from .tracker import EndState, TrackedRow, TrackedRun, converted, converted_image, numbered


class Trackio(Track):
    """Writes a run to Trackio: metrics over steps, images, histograms, tables, texts, the config.

    It is a local database, by default below the user's cache folder (the variable TRACKIO_DIR says
    another place): `trackio show` shows it. A run that is resumed from its run directory goes on in
    the same run of Trackio, and steps that were written before are not written again.

    Args:
        project: The project.
        name: The name of the run. Default: that of the run, with some letters that make it unique.
        every: Write every n-th step only. Epochs are all written.
        options: Other arguments of `trackio.init` by name, such as `space_id` and `group`.

    >>> from loopwright.trackers import Trackio
    >>> Trackio("my-project", options={"group": "first"}).every
    1
    """

    package = "trackio"

    def __init__(
        self,
        project: str = "loopwright",
        *,
        name: str | None = None,
        every: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(TrackioRun(project, name, dict(options or {})), every=every)


class TrackioRun:
    """The tracker behind `Trackio`."""

    def __init__(self, project: str, name: str | None, options: dict[str, Any]) -> None:
        self.project = project
        self.name = name
        self.options = options
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        noted = run.memory.get("name")
        is_known = run.is_resumed and isinstance(noted, str)
        if not is_known:
            noted = run.memory["name"] = self.name or f"{run.name}-{uuid4().hex[:6]}"
        elif not self.options.get("space_id"):
            storage = import_module("trackio").SQLiteStorage
            run.keep_written(storage.get_max_step_for_run(self.project, noted) or 0)
        config = {key.lstrip("_") or key: value for key, value in run.config.items()}
        options = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False, **self.options}
        self._run = import_module("trackio").init(
            self.project,
            name=noted,
            config=config,
            resume="allow" if is_known else "never",
            **options,
        )

    def log(self, rows: Sequence[TrackedRow]) -> None:
        for row in rows:
            self._run.log({**row.progress, **row.values}, step=row.step)

    def log_media(self, media: Media) -> None:
        trackio = import_module("trackio")
        content = media.content
        values: dict[str, Any]
        if isinstance(content, Images):
            values = {
                name: converted_image(trackio, file, caption)
                for name, file, caption in numbered(media, content)
            }
        elif isinstance(content, str):
            values = {media.name: trackio.Markdown(content)}
        else:
            values = {media.name: converted(trackio, content)}
        for name, value in values.items():
            self._run.log({name: value}, step=media.step)

    def finish(self, state: EndState, reason: str | None) -> None:
        run = self._run
        self._run = None
        run.finish()
