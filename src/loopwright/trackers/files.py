"""Trackers that write plain files: a table of comma-separated values, or a line of JSON for each
row."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import FileIO, StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..metrics.media import Histogram, Images, Media, Table
from ..trees import map_leaves
from .track import Track
from .tracker import EndState, TrackedRow, TrackedRun, free_path

logger = logging.getLogger("loopwright")

PLACE = ("kind", "step", "update", "epoch", "samples", "seconds", "wall")


class CSV(Track):
    """Writes metrics to a file of comma-separated values: a line for each step and each epoch.

    The columns are `kind` ("step" or "epoch"), `step`, `update`, `epoch`, `samples`, `seconds`,
    `wall`, and one for each metric. Numbers are written so that they are read back exactly. The
    config is a file beside it, and images, texts, tables and histograms are files in a folder
    beside it.

    Args:
        path: The file. Default: `metrics.csv` in the run's directory, or here without one. What a
            run has written after the step that it resumes from is removed; the file of another run
            is kept under another name.
        every: Write every n-th step only. Epochs are all written.

    >>> from loopwright.trackers import CSV
    >>> CSV("logs/metrics.csv", every=10).every
    10
    """

    def __init__(self, path: str | Path | None = None, *, every: int = 1) -> None:
        check_file(path, "metrics.csv")
        super().__init__(CSVFile(path), every=every, truncates=True)


class JSONL(Track):
    """Writes a run to a file with a line of JSON for each step, each epoch, the start, the end, and
    each of its media.

    Every line has a `kind`: "start" (with the config), "step", "epoch", "image", "histogram",
    "text", "table" or "end" (with the state). NaN and infinite numbers, which JSON lacks, are the
    texts "NaN", "Infinity" and "-Infinity". Images are files in a folder beside it.

    Args:
        path: The file. Default: `metrics.jsonl` in the run's directory, or here without one. What a
            run has written after the step that it resumes from is removed; the file of another run
            is kept under another name.
        every: Write every n-th step only. Epochs are all written.

    >>> from loopwright.trackers import JSONL
    >>> JSONL("logs/metrics.jsonl", every=10).every
    10
    """

    def __init__(self, path: str | Path | None = None, *, every: int = 1) -> None:
        check_file(path, "metrics.jsonl")
        super().__init__(JSONLFile(path), every=every, truncates=True)


def check_file(path: str | Path | None, name: str) -> None:
    """Refuse a path that is a folder: as the file of another run it would be moved away, with all
    that is in it."""
    if path is not None and Path(path).is_dir():
        raise ConfigurationError(
            "log-is-folder",
            f"{str(path)!r} is a folder: name the file to write, such as {str(Path(path, name))!r}.",
        )


class LineFile(ABC):
    """A file of lines, each of a row, that is cut to the position a run goes on from."""

    default = ""

    def __init__(self, path: str | Path | None) -> None:
        self.given = None if path is None else Path(path)
        self.path = Path()
        self._file: FileIO | None = None
        self._end = 0  # of the last line that was written completely

    def start(self, run: TrackedRun) -> None:
        self._close()
        check_file(self.given, self.default)
        self.path = (self.given or (run.folder or Path()) / self.default).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not run.is_resumed and run.memory.get("path") != str(self.path):
            kept = free_path(self.path)
            os.replace(self.path, kept)
            logger.warning("%s belongs to another run; it was renamed to %s.", self.path, kept.name)
        run.memory["path"] = str(self.path)
        self._open()
        self._cut(run)
        self.begin(run)

    def _cut(self, run: TrackedRun) -> None:
        """Remove the lines after a position, and a last one that a kill has left incomplete."""
        assert self._file is not None
        lines = self._file.read().splitlines(keepends=True) if run.is_resumed else []
        kept = [line for line in lines if line.endswith(b"\n") and self.is_kept(line, run)]
        if kept != lines or not run.is_resumed:
            self._replace(kept)
        self._end = sum(map(len, kept))

    @abstractmethod
    def is_kept(self, line: bytes, run: TrackedRun) -> bool:
        """Whether a line is of the run up to where it goes on."""

    @abstractmethod
    def begin(self, run: TrackedRun) -> None:
        """Write what comes before the first row."""

    @abstractmethod
    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Write rows."""

    @abstractmethod
    def log_media(self, media: Media) -> None:
        """Write media."""

    def finish(self, state: EndState, reason: str | None) -> None:
        self._close()

    def append(self, text: str) -> None:
        """Write complete lines; where that fails, no part of them stays."""
        assert self._file is not None
        rest = memoryview(text.encode())
        size = len(rest)
        try:
            self._file.seek(self._end)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += size

    def _replace(self, lines: Iterable[bytes]) -> None:
        """Replace the file whole, so that a kill leaves either content."""
        self._close()
        draft = self.path.with_name(f".{self.path.name}.draft")
        with open(draft, "wb") as file:
            file.writelines(lines)
        os.replace(draft, self.path)
        self._open()

    def _open(self) -> None:
        """Open the file without a buffer: a kill loses no line, and a failed write leaves nothing
        behind."""
        self._file = open(self.path, "r+b" if self.path.exists() else "w+b", buffering=0)  # noqa: SIM115

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def media_folder(self) -> Path:
        """The folder of media, beside the file."""
        return self.path.with_name(f"{self.path.stem}_media")


class CSVFile(LineFile):
    """The tracker behind `CSV`."""

    default = "metrics.csv"

    def __init__(self, path: str | Path | None) -> None:
        super().__init__(path)
        self.columns: list[str] = []

    def begin(self, run: TrackedRun) -> None:
        assert self._file is not None
        self._file.seek(0)
        lines = self._file.read().splitlines()
        self.columns = next(csv.reader([lines[0].decode()])) if lines else list(PLACE)
        if not lines:
            self.append(_csv_line(self.columns))
        settings = json.dumps(_with_text(run.config), indent=1)
        self.path.with_name(f"{self.path.stem}_config.json").write_text(settings + "\n")

    def is_kept(self, line: bytes, run: TrackedRun) -> bool:
        kind, step, _, epoch = next(csv.reader([line.decode(errors="replace")]))[:4]
        return kind == "kind" or (
            int(epoch) <= run.epoch if kind == "epoch" else int(step) <= run.step
        )

    def log(self, rows: Sequence[TrackedRow]) -> None:
        flat = [_flat(row) for row in rows]
        new = dict.fromkeys(name for row in flat for name in row if name not in self.columns)
        if new:
            self._widen([*self.columns, *new])
        self.append("".join(_csv_line(row.get(name, "") for name in self.columns) for row in flat))

    def _widen(self, columns: list[str]) -> None:
        """Write the file again with more columns, which happens when a metric comes for the first
        time."""
        assert self._file is not None
        self._file.seek(0)
        _, *lines = self._file.read(self._end).splitlines()
        more = b"," * (len(columns) - len(self.columns)) + b"\n"
        content = [_csv_line(columns).encode(), *(line + more for line in lines)]
        self._replace(content)
        self.columns = columns
        self._end = sum(map(len, content))

    def log_media(self, media: Media) -> None:
        write_media(self.media_folder, media)


class JSONLFile(LineFile):
    """The tracker behind `JSONL`."""

    default = "metrics.jsonl"

    def begin(self, run: TrackedRun) -> None:
        self._add(
            {
                "kind": "start",
                "name": run.name,
                "step": run.step,
                "epoch": run.epoch,
                "config": dict(run.config),
            }
        )

    def is_kept(self, line: bytes, run: TrackedRun) -> bool:
        try:
            found = json.loads(line)
        except ValueError:
            return False
        if found["kind"] in ("start", "end"):
            return True
        return bool(
            found["epoch"] <= run.epoch if found["kind"] == "epoch" else found["step"] <= run.step
        )

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self._add(*map(_flat, rows))

    def log_media(self, media: Media) -> None:
        content = media.content
        row = {
            "kind": media.kind,
            "name": media.name,
            "step": media.step,
            "epoch": media.epoch,
            "wall": media.wall,
        }
        if isinstance(content, Images):
            files = write_media(self.media_folder, media)
            row |= {"files": [str(file.relative_to(self.path.parent)) for file in files]}
            row |= {"captions": list(content.captions)}
        elif isinstance(content, Histogram):
            row |= {"edges": list(content.edges), "counts": list(content.counts)}
        elif isinstance(content, Table):
            row |= {
                "columns": list(content.columns),
                "rows": [list(cells) for cells in content.rows],
            }
        else:
            row |= {"text": content}
        self._add(row)

    def finish(self, state: EndState, reason: str | None) -> None:
        self._add({"kind": "end", "state": state, "reason": reason})
        super().finish(state, reason)

    def _add(self, *rows: Mapping[str, Any]) -> None:
        self.append("".join(json.dumps(_with_text(row)) + "\n" for row in rows))


def write_media(folder: Path, media: Media) -> list[Path]:
    """Write media to files of a folder: PNG, text, JSON or comma-separated values; the same step
    replaces its own."""
    folder.mkdir(parents=True, exist_ok=True)
    start = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', media.name)}-{media.step}"
    content = media.content
    first = media.position
    if isinstance(content, Images):
        files = [
            folder / f"{start}-{first + number}.png" for number in range(1, len(content.files) + 1)
        ]
        for file, image in zip(files, content.files, strict=True):
            file.write_bytes(image)
        return files
    start = f"{start}-{first + 1}" if first else start  # logged again at the same step
    path = folder / f"{start}.txt"
    text = ""
    if isinstance(content, Histogram):
        path = folder / f"{start}.json"
        text = json.dumps(
            _with_text({"edges": list(content.edges), "counts": list(content.counts)})
        )
    elif isinstance(content, Table):
        path = folder / f"{start}.csv"
        text = "".join(map(_csv_line, [content.columns, *content.rows]))
    else:
        text = content
    path.write_text(text)
    return [path]


def _flat(row: TrackedRow) -> dict[str, Any]:
    """The row's place and metrics; a metric that is named as a column of the place is
    `metric/<name>`."""
    place = {name: getattr(row, name) for name in PLACE}
    metrics = {" ".join(name.split()): float(value) for name, value in row.values.items()}
    return place | {
        f"metric/{name}" if name in place else name: value for name, value in metrics.items()
    }


def _csv_line(cells: Iterable[Any]) -> str:
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _with_text(value: Any) -> Any:
    """The value with texts in the place of numbers that JSON does not have."""

    def text(leaf: Any) -> Any:
        is_odd = isinstance(leaf, float) and not isfinite(leaf)
        return json.dumps(leaf) if is_odd else leaf

    return map_leaves(text, value)
