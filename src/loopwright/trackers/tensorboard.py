"""A tracker that writes event files for TensorBoard."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from time import sleep, time
from typing import Any

from ..metrics.media import Histogram, Images, Media, Table
from .track import Track
from .tracker import EndState, TrackedRow, TrackedRun, free_path, numbered

WRITER = "torch.utils.tensorboard.writer"


class TensorBoard(Track):
    """Writes event files for TensorBoard: look at them with `tensorboard --logdir logs`.

    Metrics are scalars over steps. Images, histograms and texts are what they are; tables are
    texts. The config is in the HParams tab. A run has a folder of its own,
    in which it goes on when it is resumed: the steps after the resume point are declared void
    there, so that TensorBoard shows each once.

    Args:
        folder: The folder of all runs. Default: `tensorboard` in the run's directory, or here
            without one.
        name: The name of the run's folder. Default: the run's name; with a number where another run
            has it.
        every: Write every n-th step only. Epochs are all written.

    >>> from loopwright.trackers import TensorBoard
    >>> TensorBoard("logs", every=10).every
    10
    """

    package = "tensorboard"

    def __init__(
        self, folder: str | Path | None = None, *, name: str | None = None, every: int = 1
    ) -> None:
        super().__init__(EventFiles(folder, name), every=every, truncates=True)

    def prepare(self) -> None:
        import_module(WRITER)


class EventFiles:
    """The tracker behind `TensorBoard`."""

    def __init__(self, folder: str | Path | None, name: str | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.name = name
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        self._close()
        path = self._path(run)
        _wait_for_new_second(path)
        module = import_module(WRITER)
        self._writer = module.FileWriter(path)
        if run.is_resumed or len(list(path.iterdir())) > 1:
            first = run.step + 1
            log = module.SessionLog(status=module.SessionLog.START)
            self._writer.add_event(module.Event(step=first, session_log=log), first)
        # for the HParams tab, which finds the metrics by itself
        known = {key: value for key, value in run.config.items() if value is not None}
        _, start, _ = _summary().hparams(known, {})
        self._writer.add_summary(start)
        self._writer.flush()

    def _path(self, run: TrackedRun) -> Path:
        folder = self.folder or (run.folder or Path()) / "tensorboard"
        noted = run.memory.get("folder")
        if isinstance(noted, str):
            return folder / noted
        path = folder / (self.name or re.sub(r"[^\w .-]|^[.]+", "_", run.name))
        path = path if run.is_resumed else free_path(path)
        run.memory["folder"] = os.path.relpath(path, folder)  # the folder of all runs may be moved
        return path

    def log(self, rows: Sequence[TrackedRow]) -> None:
        summary = _summary().Summary
        for row in rows:
            values = [
                summary.Value(tag=name, simple_value=value) for name, value in row.values.items()
            ]
            self._writer.add_summary(summary(value=values), row.step, row.wall)
        self._writer.flush()

    def log_media(self, media: Media) -> None:
        content = media.content
        if isinstance(content, Images):
            for name, file, caption in numbered(media, content):
                self._writer.add_summary(_image(name, file, caption), media.step, media.wall)
        elif isinstance(content, Histogram):
            self._writer.add_summary(_histogram(media.name, content), media.step, media.wall)
        else:
            text = content if isinstance(content, str) else _markdown(content)
            self._writer.add_summary(_summary().text(media.name, text), media.step, media.wall)
        self._writer.flush()

    def finish(self, state: EndState, reason: str | None) -> None:
        if state in ("finished", "stopped"):
            _, _, end = _summary().hparams({}, {})
            self._writer.add_summary(end)
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _summary() -> Any:
    """Torch's functions that make summaries."""
    return import_module("torch.utils.tensorboard.summary")


def _image(tag: str, file: bytes, caption: str) -> Any:
    """A PNG file as it is; its size is in its first chunk."""
    width, height = struct.unpack(">II", file[16:24])
    module = _summary()
    image = module.Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=file
    )
    metadata = module.SummaryMetadata(summary_description=caption) if caption else None
    value = module.Summary.Value(tag=tag, image=image, metadata=metadata)
    return module.Summary(value=[value])


def _histogram(tag: str, content: Histogram) -> Any:
    """Counts under the upper edges of their buckets; sums go by the middles, since the values are
    not known."""
    counts = content.counts
    middles = [(first + last) / 2 for first, last in pairwise(content.edges)]
    return _summary().histogram_raw(
        tag,
        min=content.edges[0],
        max=content.edges[-1],
        num=sum(counts),
        sum=sum(n * x for n, x in zip(counts, middles, strict=True)),
        sum_squares=sum(n * x * x for n, x in zip(counts, middles, strict=True)),
        bucket_limits=content.edges,
        bucket_counts=[0, *counts],
    )


def _wait_for_new_second(folder: Path) -> None:
    """Wait until the next file comes after those of the folder, which are read in the order of
    their seconds."""
    seconds = [int(file.name.split(".")[3]) for file in folder.glob("events.out.tfevents.[0-9]*")]
    for _ in range(40):  # no longer, where the clock was set back
        if not seconds or time() >= max(seconds) + 1:
            return
        sleep(0.05)


def _markdown(table: Table) -> str:
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows
    )
