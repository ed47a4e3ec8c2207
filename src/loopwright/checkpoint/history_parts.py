"""The history of a run in parts, so that a resume point writes what is new and shares the rest with
an earlier one.

A part is a file `history-1.safetensors` that is never changed. A resume point holds all parts of
its history: one is new, the others are hard links to the files of an earlier resume point (copies,
where a filesystem has no links), so every resume point is complete in itself. A new part takes in
those before it that are no larger, which leaves a number of parts that grows with the logarithm of
the run's length.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..metrics.history import Addition, History, HistoryExtent, Series, is_same
from .atomic import FileRecord
from .layout import parse_json
from .manifest import find_problem
from .tensors import Tree, read_tensors, write_tensors

FILES = "files"  # in the state, `{"history": {"files": [...]}}` says that the history is in these


@dataclass(slots=True)
class HistoryPart:
    """What a history has between two extents: to be written, or in a file of the resume point
    `directory`."""

    name: str
    start: HistoryExtent
    end: HistoryExtent
    content: Addition
    size: int
    directory: Path | None = None
    record: FileRecord | None = None

    def put_into(self, staging: Path) -> FileRecord:
        """Have the file in a resume point that is being written."""
        if self.directory is None or self.record is None:
            self.record = write_tensors(staging / self.name, _encoded(self.content))
        else:
            _link(self.directory / self.name, staging / self.name)
        return self.record

    def settle(self, directory: Path) -> None:
        """The resume point is complete: from now on the file is there, and its content need not be
        in memory."""
        self.directory, self.content = directory, Addition(0, [], {})

    @property
    def is_there(self) -> bool:
        if self.directory is None or self.record is None:
            return False
        return find_problem(self.directory, self.name, self.record, deep=False) is None


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The parts that a resume point will hold, the last of them new, and which history they are
    of."""

    directory: Path
    parts: list[HistoryPart]
    identity: tuple[object, object]  # of the history

    @property
    def note(self) -> dict[str, Tree]:
        """What the state says where the history would be."""
        return {FILES: [part.name for part in self.parts]}


class SharedHistory:
    """The parts of the history that are on disk, from one resume point to the next.

    Where two resume points are kept, each shares files with the one before the last, so that a file
    that is damaged never spoils both of them.
    """

    def __init__(self, keep: int) -> None:
        self._settled: deque[HistoryPlan | None] = deque([None] * min(keep, 2))  # the latest first
        self._num_written = 0

    def plan(self, history: History, directory: Path) -> HistoryPlan:
        """Say what a resume point in this directory consists of; parts that are needed must be
        there until then."""
        parts = self._usable(directory, history)
        start = parts[-1].end if parts else HistoryExtent()
        size = history.since(start).size
        while parts and parts[-1].size <= size:
            merged = parts.pop()
            start = merged.start
            size = size + merged.size
        self._num_written += 1
        content = history.since(start)
        new = HistoryPart(
            f"history-{self._num_written}.safetensors", start, history.extent, content, content.size
        )
        return HistoryPlan(directory, [*parts, new], history.identity)

    def settle(self, plan: HistoryPlan) -> None:
        """The resume point is complete."""
        for part in plan.parts:
            part.settle(plan.directory)
        if not self._replaces_latest(plan.directory):
            self._settled.rotate()
        self._settled[0] = plan

    def _usable(self, directory: Path, history: History) -> list[HistoryPart]:
        """Parts on disk that can be shared, if they are of this very history: one loaded anew is
        written as a whole."""
        earlier = self._settled[0 if self._replaces_latest(directory) else -1]
        if earlier is None or not is_same(earlier.identity, history.identity):
            return []
        return (
            [replace(part) for part in earlier.parts]
            if all(part.is_there for part in earlier.parts)
            else []
        )

    def _replaces_latest(self, directory: Path) -> bool:
        latest = self._settled[0]
        return latest is not None and latest.directory == directory


def files_in(state: Tree) -> list[str]:
    """The files that a state says its history is in; none where it has the history itself, or has
    none."""
    history = state.get("history") if isinstance(state, dict) else None
    names = history.get(FILES) if isinstance(history, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def read_history(directory: Path, names: list[str]) -> dict[str, Any]:
    """The state of the history that is in these files."""
    history = History()
    for name in names:
        try:
            history.extend(_decoded(read_tensors(directory / name), f"{directory / name}"))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CheckpointError(
                "foreign-history", f"{directory / name} is not a part of this history: {error!r}."
            ) from error
    return history.state_dict()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a filesystem without links
        shutil.copyfile(source, target)
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _encoded(added: Addition) -> dict[str, Tensor]:
    """Rows as numbers and, for each, which names they have; series as they are; and a table of
    names as JSON."""
    kinds: dict[tuple[str, ...], int] = {}
    rows = [kinds.setdefault(tuple(row), len(kinds)) for row in added.epochs]
    series = [[name, s.stride, s.num_seen] for name, s in added.steps.items()]
    table = json.dumps(
        {"first_epoch": added.first_epoch, "kinds": list(kinds), "series": series}
    ).encode()
    tensors = {
        "table": torch.frombuffer(bytearray(table), dtype=torch.uint8),
        "epochs.kinds": torch.tensor(rows, dtype=torch.int64),
        "epochs.values": torch.tensor(
            [v for row in added.epochs for v in row.values()], dtype=torch.float64
        ),
    }
    for number, points in enumerate(added.steps.values()):
        tensors |= {f"series.{number}.{part}": tensor for part, tensor in points.tensors().items()}
    return tensors


def _decoded(tensors: dict[str, Tensor], source: str) -> Addition:
    table: Any = parse_json(bytes(tensors["table"].tolist()), source)
    values = iter(tensors["epochs.values"].tolist())
    kinds: list[list[str]] = [table["kinds"][kind] for kind in tensors["epochs.kinds"].tolist()]
    if sum(map(len, kinds)) != len(tensors["epochs.values"]):
        raise ValueError("its rows do not have as many values as names")
    epochs = [dict(zip(names, values, strict=False)) for names in kinds]
    steps = {}
    for number, (name, stride, num_seen) in enumerate(table["series"]):
        steps[name] = Series()
        steps[name].load_state_dict(
            {
                "stride": stride,
                "num_seen": num_seen,
                "steps": tensors[f"series.{number}.steps"],
                "values": tensors[f"series.{number}.values"],
            }
        )
    return Addition(table["first_epoch"], epochs, steps)
