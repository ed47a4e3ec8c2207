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
from .tracker import (
    EndState,
    TrackedRow,
    TrackedRun,
    check_installed,
    free_path,
    numbered,
)

HPARAMS = "_hparams_/session_"


class TensorBoard(Track):
    """Writes event files for TensorBoard: look at them with `tensorboard --logdir logs`.

    Metrics are scalars over steps. Images, histograms and texts are what they are; tables are
    texts. The config is the text `config`, and in the HParams tab. A run has a folder of its own,
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

    def __init__(
        self, folder: str | Path | None = None, *, name: str | None = None, every: int = 1
    ) -> None:
        check_installed("tensorboard", "TensorBoard")
        super().__init__(EventFiles(folder, name), every=every, truncates=True)

    def prepare(self) -> None:
        for module in EventFiles.MODULES:
            import_module(module)


class EventFiles:
    """The tracker behind `TensorBoard`."""

    EVENT = "tensorboard.compat.proto.event_pb2"
    SUMMARY = "tensorboard.compat.proto.summary_pb2"
    HPARAMS_API = "tensorboard.plugins.hparams.api_pb2"
    HPARAMS_DATA = "tensorboard.plugins.hparams.plugin_data_pb2"
    WRITER = "torch.utils.tensorboard"
    TORCH = "torch.utils.tensorboard.summary"
    MODULES = (EVENT, SUMMARY, HPARAMS_API, HPARAMS_DATA, WRITER, TORCH)

    def __init__(self, folder: str | Path | None, name: str | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.name = name
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        self._close()
        path = self._path(run)
        _wait_for_new_second(path)
        self._writer = import_module(self.WRITER).FileWriter(path)
        if run.is_resumed or len(list(path.iterdir())) > 1:
            session = import_module(self.EVENT).SessionLog
            event = import_module(self.EVENT).Event
            self._writer.add_event(
                event(step=run.step + 1, session_log=session(status=session.START)), run.step + 1
            )
        self._add_text(
            "config",
            _markdown(Table(("setting", "value"), tuple(run.config.items()))),
            run.step,
            time(),
        )
        self._add_hparams(run)
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

    def _add_hparams(self, run: TrackedRun) -> None:
        """Write the config for the HParams tab, which finds the metrics by itself."""
        settings = {key: value for key, value in run.config.items() if value is not None}
        _, start, _ = import_module(self.TORCH).hparams(settings, {})
        self._writer.add_summary(start)

    def log(self, rows: Sequence[TrackedRow]) -> None:
        summary = import_module(self.SUMMARY).Summary
        for row in rows:
            values = [
                summary.Value(tag=name, simple_value=value) for name, value in row.values.items()
            ]
            self._writer.add_summary(summary(value=values), row.step, row.wall)
        self._writer.flush()

    def log_media(self, media: Media) -> None:
        content = media.content
        step = media.step
        wall = media.wall
        if isinstance(content, Images):
            for name, file, caption in numbered(media, content):
                self._add_image(name, file, caption, step, wall)
        elif isinstance(content, Histogram):
            self._add_histogram(media.name, content, step, wall)
        else:
            self._add_text(
                media.name,
                _markdown(content) if isinstance(content, Table) else content,
                step,
                wall,
            )
        self._writer.flush()

    def finish(self, state: EndState, reason: str | None) -> None:
        api = import_module(self.HPARAMS_API)
        data = import_module(self.HPARAMS_DATA)
        summary = import_module(self.SUMMARY)
        is_good = state in ("finished", "stopped")
        status = api.Status.Value("STATUS_SUCCESS" if is_good else "STATUS_FAILURE")
        end = data.SessionEndInfo(status=status, end_time_secs=time())
        content = data.HParamsPluginData(session_end_info=end, version=0).SerializeToString()
        plugin = summary.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
        value = summary.Summary.Value(
            tag=f"{HPARAMS}end_info", metadata=summary.SummaryMetadata(plugin_data=plugin)
        )
        self._writer.add_summary(summary.Summary(value=[value]))
        self._close()

    def _add_image(self, tag: str, file: bytes, caption: str, step: int, wall: float) -> None:
        """Add a PNG file as it is; its size is in its first chunk."""
        width, height = struct.unpack(">II", file[16:24])
        summary = import_module(self.SUMMARY)
        image = summary.Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=file
        )
        metadata = summary.SummaryMetadata(summary_description=caption)
        value = summary.Summary.Value(tag=tag, image=image, metadata=metadata if caption else None)
        self._writer.add_summary(summary.Summary(value=[value]), step, wall)

    def _add_histogram(self, tag: str, content: Histogram, step: int, wall: float) -> None:
        """Add counts under the upper edges of their buckets; sums go by the middles, since the
        values are not known."""
        summary = import_module(self.SUMMARY)
        edges = content.edges
        counts = content.counts
        middles = [(first + last) / 2 for first, last in pairwise(edges)]
        histogram = summary.HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(n * x for n, x in zip(counts, middles, strict=True)),
            sum_squares=sum(n * x * x for n, x in zip(counts, middles, strict=True)),
            bucket_limit=edges,
            bucket=[0, *counts],
        )
        value = summary.Summary.Value(tag=tag, histo=histogram)
        self._writer.add_summary(summary.Summary(value=[value]), step, wall)

    def _add_text(self, tag: str, text: str, step: int, wall: float) -> None:
        self._writer.add_summary(import_module(self.TORCH).text(tag, text), step, wall)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


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
