"""Trackers that write plain files: a table of comma-separated values, or a line of JSON for each
row."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from io import StringIO
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
    `wall`, and one for each metric. Numbers are written so that they are read back exactly. Images,
    texts, tables and histograms are files in a folder beside it.

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
        super().__init__(JSONLFile(path), every=every, truncates=True)


class LineFile:
    """A file of lines, each of a row, that is cut to the position a run goes on from."""

    default = ""

    def __init__(self, path: str | Path | None) -> None:
        # as the file of another run, a folder would be moved away, with all that is in it
        if path is not None and Path(path).is_dir():
            raise ConfigurationError(
                "log-is-folder",
                f"{str(path)!r} is a folder: name the file to write, such as "
                f"{str(Path(path, self.default))!r}.",
            )
        self.given = None if path is None else Path(path)
        self.path = Path()

    def start(self, run: TrackedRun) -> None:
        self.path = (self.given or (run.folder or Path()) / self.default).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not run.is_resumed and run.memory.get("path") != str(self.path):
            kept = free_path(self.path)
            os.replace(self.path, kept)
            logger.warning("%s belongs to another run; it was renamed to %s.", self.path, kept.name)
        run.memory["path"] = str(self.path)
        # without what is after the position, and a last line that a kill has left incomplete
        lines = self.lines() if run.is_resumed and self.path.exists() else []
        self.replace(line for line in lines if line.endswith(b"\n") and self._is_before(line, run))

    def _is_before(self, line: bytes, run: TrackedRun) -> bool:
        """Whether a line is of the run up to where it goes on."""
        try:
            kind, step, epoch = self.place(line)
        except (ValueError, LookupError, TypeError):  # a line that no run has written
            return False
        if kind == "epoch":
            return epoch <= run.epoch
        return step <= run.step

    def place(self, line: bytes) -> tuple[str, int, int]:
        """The kind of a line, its step and its epoch; step 0 of a line that stays."""
        raise NotImplementedError

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)

    def append(self, text: str) -> None:
        """Write complete lines; where that fails, no part of them stays."""
        end = self.path.stat().st_size
        try:
            with open(self.path, "ab") as file:
                file.write(text.encode())
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, end)
            raise

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace the file whole, so that a kill leaves either content."""
        draft = self.path.with_name(f".{self.path.name}.draft")
        draft.write_bytes(b"".join(lines))
        os.replace(draft, self.path)

    def finish(self, state: EndState, reason: str | None) -> None:
        """Nothing is left to be written."""

    @property
    def media_folder(self) -> Path:
        """The folder of media, beside the file."""
        return self.path.with_name(f"{self.path.stem}_media")


class CSVFile(LineFile):
    """The tracker behind `CSV`."""

    default = "metrics.csv"

    def start(self, run: TrackedRun) -> None:
        super().start(run)
        lines = self.lines()
        self.columns = next(csv.reader([lines[0].decode()])) if lines else list(PLACE)
        if not lines:
            self.append(_csv_line(self.columns))

    def place(self, line: bytes) -> tuple[str, int, int]:
        kind, step, _, epoch = next(csv.reader([line.decode(errors="replace")]))[:4]
        return (kind, 0, 0) if kind == "kind" else (kind, int(step), int(epoch))

    def log(self, rows: Sequence[TrackedRow]) -> None:
        flat = [_flat(row) for row in rows]
        new = dict.fromkeys(name for row in flat for name in row if name not in self.columns)
        if new:  # the file is written again when a metric comes for the first time
            self.columns += new
            _, *lines = self.lines()
            more = b"," * len(new) + b"\n"
            header = _csv_line(self.columns).encode()
            self.replace([header, *(line.removesuffix(b"\n") + more for line in lines)])
        self.append("".join(_csv_line(row.get(name, "") for name in self.columns) for row in flat))

    def log_media(self, media: Media) -> None:
        write_media(self.media_folder, media)


class JSONLFile(LineFile):
    """The tracker behind `JSONL`."""

    default = "metrics.jsonl"

    def start(self, run: TrackedRun) -> None:
        super().start(run)
        place = {"step": run.step, "epoch": run.epoch}
        self._add({"kind": "start", "name": run.name, **place, "config": dict(run.config)})

    def place(self, line: bytes) -> tuple[str, int, int]:
        found = json.loads(line)
        kind = found["kind"]
        return (kind, 0, 0) if kind in ("start", "end") else (kind, found["step"], found["epoch"])

    def log(self, rows: Sequence[TrackedRow]) -> None:
        self._add(*map(_flat, rows))

    def log_media(self, media: Media) -> None:
        row = {name: getattr(media, name) for name in ("kind", "name", "step", "epoch", "wall")}
        content = media.content
        if isinstance(content, Images):
            files = write_media(self.media_folder, media)
            row["files"] = [str(file.relative_to(self.path.parent)) for file in files]
            row["captions"] = content.captions
        elif isinstance(content, str):
            row["text"] = content
        else:
            row |= asdict(content)
        self._add(row)

    def finish(self, state: EndState, reason: str | None) -> None:
        self._add({"kind": "end", "state": state, "reason": reason})

    def _add(self, *rows: Mapping[str, Any]) -> None:
        self.append("".join(json.dumps(_with_text(row)) + "\n" for row in rows))


def write_media(folder: Path, media: Media) -> list[Path]:
    """Write media to files of a folder: PNG, text, JSON or comma-separated values; the same step
    replaces its own."""
    folder.mkdir(parents=True, exist_ok=True)
    start = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', media.name)}-{media.step}"
    content = media.content
    first = media.position + 1
    if isinstance(content, Images):
        files = []
        for number, image in enumerate(content.files, start=first):
            files.append(folder / f"{start}-{number}.png")
            files[-1].write_bytes(image)
        return files
    start = f"{start}-{first}" if first > 1 else start  # logged again at the same step
    if isinstance(content, Histogram):
        path = folder / f"{start}.json"
        path.write_text(json.dumps(_with_text(asdict(content))))
    elif isinstance(content, Table):
        path = folder / f"{start}.csv"
        path.write_text("".join(map(_csv_line, [content.columns, *content.rows])))
    else:
        path = folder / f"{start}.txt"
        path.write_text(content)
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
