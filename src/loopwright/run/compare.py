"""Differences between two runs: config, code and machine, and the first step and epoch where their metrics diverge."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from .changes import Change, find_changes, flatten, is_identical
from .directory import FOLDERS
from .metrics_view import MetricsView
from .reading import RunView

Level = Literal["steps", "epochs"]
LEVELS: tuple[Level, Level] = ("steps", "epochs")
OWN = ("name", "output_path", "tags", "resume")  # keys of a config that name a run and do not change its training
MEASURED = re.compile(r"(^|[_/.])(time|seconds|second|eta|memory|throughput|speed)($|[_/.])")  # of the machine


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the metrics of two runs are equal, bit for bit."""

    level: Level
    num_same: int  # steps or epochs of both runs before they diverge
    at: int | None = None
    changes: tuple[Change, ...] = ()
    ends: tuple[int | None, int | None] = (None, None)  # the last step or epoch of each run, where they do not diverge
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.at is None and self.ends[0] == self.ends[1] and not (self.only_first or self.only_second)


@dataclass(frozen=True, slots=True)
class RunDiff:
    """All differences between two runs; a part that neither run recorded is None."""

    parts: dict[str, list[Change] | None]
    metrics: tuple[Divergence, Divergence]
    ignored: tuple[str, ...] = field(default=())

    @property
    def is_same(self) -> bool:
        return not any(self.parts.values()) and all(divergence.is_same for divergence in self.metrics)


def compare_runs(first: RunView, second: RunView, *, ignore: tuple[str, ...] = (), strict: bool = False) -> RunDiff:
    """Compare two runs, without metrics that match a pattern of `ignore` and, unless `strict`, measured times."""
    parts = {name: _compare(pick(first), pick(second)) for name, pick in PARTS.items()}
    return RunDiff(parts, *compare_metrics(first, second, ignore=ignore, strict=strict))


def compare_metrics(
    first: RunView, second: RunView, *, ignore: tuple[str, ...] = (), strict: bool = False
) -> tuple[tuple[Divergence, Divergence], tuple[str, ...]]:
    """Where the metrics of steps and of epochs diverge, and the metrics that were left out."""
    left_out: set[str] = set()

    def is_compared(name: str) -> bool:
        if any(fnmatchcase(name, pattern) for pattern in ignore) or (not strict and MEASURED.search(name)):
            left_out.add(name)
            return False
        return True

    steps, epochs = (_part(first.metrics, second.metrics, level, is_compared) for level in LEVELS)
    return (steps, epochs), tuple(sorted(left_out))


def described_parts(run: RunView) -> dict[str, dict[str, object]]:
    """Config, code, packages, seed, hardware and data of a run under dotted keys; a part that it lacks is empty."""
    parts = {name: pick(run) for name, pick in PARTS.items()}
    return {name: flatten(value) if value else {} for name, value in parts.items()}


def _config(run: RunView) -> object:
    return run.config and {key: value for key, value in run.config.items() if key not in OWN}


def _code(run: RunView) -> object:
    """The commit, the uncommitted changes, and the hashes of the program's own modules."""
    found = _noted(run, {"git_commit": "commit", "git_dirty": "uncommitted changes"})
    own = [path for path in run.path.rglob("*.py") if path.relative_to(run.path).parts[0] not in FOLDERS]
    files = sorted(path for path in (*own, run.path / "code.diff") if path.is_file())
    return found | {str(path.relative_to(run.path)): _hash(path) for path in files}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _packages(run: RunView) -> object:
    listed = run.manifest.get("packages")
    own = _noted(run, dict.fromkeys(("python", "loopwright", "torch")))
    return {**(listed if isinstance(listed, dict) else {}), **own}


def _hardware(run: RunView) -> object:
    listed = run.manifest.get("hardware")
    own = _noted(run, dict.fromkeys(("platform", "device")))
    return {**own, **(listed if isinstance(listed, dict) else {})}


def _noted(run: RunView, names: Mapping[str, str | None]) -> dict[str, object]:
    """Entries of the manifest that are known, some under clearer names."""
    return {title or name: run.manifest[name] for name, title in names.items() if run.manifest.get(name) is not None}


PARTS: dict[str, Callable[[RunView], object]] = {
    "config": _config,
    "code": _code,
    "packages": _packages,
    "seed": lambda run: _noted(run, {"seed": None}),
    "hardware": _hardware,
    "data": lambda run: run.manifest.get("data"),
}


def _compare(first: object, second: object) -> list[Change] | None:
    """The changes between two trees; None where both are empty."""
    if not first and not second:
        return None
    ours, theirs = (flatten(value) if value else {} for value in (first, second))
    return find_changes(ours, theirs, is_identical)  # in the order of the first run


def _part(first: MetricsView, second: MetricsView, level: Level, is_compared: Any) -> Divergence:
    """Compare both runs until they diverge; steps that only one of them logged are skipped."""
    ours, theirs = first.by_place(level), second.by_place(level)
    mine, other = next(ours, None), next(theirs, None)
    ends: list[int | None] = [None, None]
    only: list[dict[str, None]] = [{}, {}]
    num_same = 0
    while mine is not None and other is not None:
        ends = [mine[0], other[0]]
        if mine[0] == other[0]:
            for names, row, opposite in ((only[0], mine[1], other[1]), (only[1], other[1], mine[1])):
                names.update(dict.fromkeys(name for name in row if name not in opposite and is_compared(name)))
            if changes := _changes(mine[1], other[1], is_compared):
                return Divergence(level, num_same, mine[0], changes, (None, None), tuple(only[0]), tuple(only[1]))
            num_same += 1
        at = mine[0]
        mine = next(ours, None) if at <= other[0] else mine
        other = next(theirs, None) if other[0] <= at else other
    ends = [_last(mine, ours, ends[0]), _last(other, theirs, ends[1])]
    return Divergence(level, num_same, None, (), (ends[0], ends[1]), tuple(only[0]), tuple(only[1]))


def _changes(first: Mapping[str, float], second: Mapping[str, float], is_compared: Any) -> tuple[Change, ...]:
    common = [name for name in first if name in second and is_compared(name)]
    return tuple(Change(n, first[n], second[n]) for n in common if _PACK(first[n]) != _PACK(second[n]))


def _last(row: tuple[int, Any] | None, rows: Iterator[tuple[int, Any]], known: int | None) -> int | None:
    """The last step or epoch of a run, after reading the rest of its rows."""
    if row is None:
        return known
    return max((at for at, _ in rows), default=row[0])


_PACK = struct.Struct(">d").pack
