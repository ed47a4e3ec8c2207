"""Differences between two runs: config, code and machine, and the first step and epoch where their
metrics diverge."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..checkpoint.manifest import hash_file
from .changes import Change, find_changes, flatten, is_identical
from .directory import FOLDERS
from .metrics_view import MetricsView
from .reading import Run, compile_choice

if TYPE_CHECKING:
    from .curves import Array

    PlacesAndValues: TypeAlias = Mapping[str, tuple[Array, Array]]

Level = Literal["steps", "epochs"]
# steps or epochs that are compared at once; each window is twice as long as the one before
FIRST_WINDOW = 4096
LEVELS: tuple[Level, Level] = ("steps", "epochs")
# keys of a config that name a run and do not change its training
OWN = ("name", "output_path", "tags", "resume")
# metrics of the machine
MEASURED = re.compile(r"(^|[_/.])(time|seconds|second|eta|memory|throughput|speed)($|[_/.])")


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the metrics of two runs are equal, bit for bit."""

    level: Level
    num_same: int  # steps or epochs of both runs before they diverge
    at: int | None = None
    changes: tuple[Change, ...] = ()
    # the last step or epoch of each run, where they do not diverge
    ends: tuple[int | None, int | None] = (None, None)
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return (
            self.at is None
            and self.ends[0] == self.ends[1]
            and not (self.only_first or self.only_second)
        )


@dataclass(frozen=True, slots=True)
class RunDiff:
    """All differences between two runs; a part that neither run recorded is None."""

    parts: dict[str, list[Change] | None]
    metrics: tuple[Divergence, Divergence]
    ignored: tuple[str, ...] = field(default=())

    @property
    def is_same(self) -> bool:
        return not any(self.parts.values()) and all(
            divergence.is_same for divergence in self.metrics
        )


def compare_runs(
    first: Run, second: Run, *, ignore: tuple[str, ...] = (), strict: bool = False
) -> RunDiff:
    """Compare two runs, without metrics that match a pattern of `ignore` and, unless `strict`,
    measured times."""
    ours = described_parts(first)
    theirs = described_parts(second)
    parts = {
        name: find_changes(ours[name], theirs[name], is_identical)  # in the order of the first run
        if ours[name] or theirs[name]
        else None
        for name in PARTS
    }
    return RunDiff(parts, *compare_metrics(first, second, ignore=ignore, strict=strict))


def compare_metrics(
    first: Run, second: Run, *, ignore: tuple[str, ...] = (), strict: bool = False
) -> tuple[tuple[Divergence, Divergence], tuple[str, ...]]:
    """Where the metrics of steps and of epochs diverge, and the metrics that were left out."""
    left_out: set[str] = set()

    def is_compared(name: str) -> bool:
        if any(fnmatchcase(name, pattern) for pattern in ignore) or (
            not strict and MEASURED.search(name)
        ):
            left_out.add(name)
            return False
        return True

    steps, epochs = (_part(first.metrics, second.metrics, level, is_compared) for level in LEVELS)
    return (steps, epochs), tuple(sorted(left_out))


def described_parts(run: Run) -> dict[str, dict[str, object]]:
    """Config, code, packages, seed, hardware and data of a run under dotted keys; a part that it
    lacks is empty."""
    parts = {name: pick(run) for name, pick in PARTS.items()}
    return {name: flatten(value) if value else {} for name, value in parts.items()}


def _config(run: Run) -> object:
    config = run.config_file
    given = run.settings if config is None else {**config, **compile_choice(run.manifest)}
    return {key: value for key, value in given.items() if key not in OWN}


def _code(run: Run) -> object:
    """The commit, the uncommitted changes, and the hashes of the program's own modules."""
    found = _noted(run, {"git_commit": "commit", "git_dirty": "uncommitted changes"})
    own = [
        path
        for path in run.path.rglob("*.py")
        if path.relative_to(run.path).parts[0] not in FOLDERS
    ]
    files = sorted(path for path in (*own, run.path / "code.diff") if path.is_file())
    return found | {str(path.relative_to(run.path)): _hash(path) for path in files}


def _hash(path: Path) -> str:
    return hash_file(path)[:12]


def _packages(run: Run) -> object:
    listed = run.manifest.get("packages")
    own = _noted(run, dict.fromkeys(("python", "loopwright", "torch")))
    return {**(listed if isinstance(listed, dict) else {}), **own}


def _hardware(run: Run) -> object:
    listed = run.manifest.get("hardware")
    own = _noted(run, dict.fromkeys(("platform", "device")))
    return {**own, **(listed if isinstance(listed, dict) else {})}


def _noted(run: Run, names: Mapping[str, str | None]) -> dict[str, object]:
    """Entries of the manifest that are known, some under clearer names."""
    return {
        title or name: run.manifest[name]
        for name, title in names.items()
        if run.manifest.get(name) is not None
    }


PARTS: dict[str, Callable[[Run], object]] = {
    "config": _config,
    "code": _code,
    "packages": _packages,
    "seed": lambda run: _noted(run, {"seed": None}),
    "hardware": _hardware,
    "data": lambda run: run.manifest.get("data"),
}


def _part(
    first: MetricsView, second: MetricsView, level: Level, is_compared: Callable[[str], bool]
) -> Divergence:
    """Compare both runs until they diverge, in windows that grow; steps that only one of them
    logged are skipped."""
    ends = _last(first, level), _last(second, level)
    last = -1 if None in ends else min(end for end in ends if end is not None)
    only: tuple[dict[str, None], dict[str, None]] = ({}, {})
    num_same = 0
    start = 0
    size = FIRST_WINDOW
    while start <= last:
        window = _Window(
            first.between(level, start, start + size), second.between(level, start, start + size)
        )
        at, changes = window.changes(is_compared)
        num_same += window.count_common(at)
        for names, found in zip(only, window.only(at, is_compared), strict=True):
            names.update(dict.fromkeys(found))
        if at is not None:
            return Divergence(
                level, num_same, at, changes, (None, None), tuple(only[0]), tuple(only[1])
            )
        start = start + size
        size = 2 * size
    return Divergence(level, num_same, None, (), ends, tuple(only[0]), tuple(only[1]))


def _last(metrics: MetricsView, level: Level) -> int | None:
    """The last step or epoch of a run."""
    if level == "steps":
        step = metrics.last_step()
        return None if step is None else step[0]
    epoch = metrics.last_epoch()
    return None if epoch is None else epoch.at


class _Window:
    """The metrics of two runs in the same steps or epochs: for each its places and values."""

    def __init__(self, first: PlacesAndValues, second: PlacesAndValues) -> None:
        self.runs = first, second
        self.common = _both(*(_union([places for places, _ in run.values()]) for run in self.runs))

    def changes(self, is_compared: Callable[[str], bool]) -> tuple[int | None, tuple[Change, ...]]:
        """The first place at which a metric of both differs in a bit, and the metrics that do
        there."""
        found: dict[str, tuple[int, float, float]] = {}
        for name in self.runs[0]:
            if name in self.runs[1] and is_compared(name) and (change := self._first_change(name)):
                found[name] = change
        at = min((place for place, _, _ in found.values()), default=None)
        return at, tuple(
            Change(name, *values) for name, (place, *values) in found.items() if place == at
        )

    def _first_change(self, name: str) -> tuple[int, float, float] | None:
        import numpy as np

        (places, ours) = self.runs[0][name]
        (others, theirs) = self.runs[1][name]
        both = _both(places, others)
        if len(both) < max(len(places), len(others)):
            ours = ours[np.isin(places, both)]
            theirs = theirs[np.isin(others, both)]
        differ = np.flatnonzero(ours.view(np.int64) != theirs.view(np.int64))
        return (
            None
            if not len(differ)
            else (int(both[differ[0]]), float(ours[differ[0]]), float(theirs[differ[0]]))
        )

    def count_common(self, end: int | None) -> int:
        """How many places both runs have, before one."""
        return len(self.common) if end is None else int((self.common < end).sum())

    def only(self, last: int | None, is_compared: Callable[[str], bool]) -> Iterator[list[str]]:
        """For each run, the metrics that it has at a place where the other has others only."""
        common = self.common if last is None else self.common[self.common <= last]
        for own, other in (self.runs, self.runs[::-1]):
            known = {name: other[name][0] if name in other else common[:0] for name in own}
            shared = {name: _both(places, common) for name, (places, _) in own.items()}
            lacking = [
                name for name in own if len(_both(shared[name], known[name])) < len(shared[name])
            ]
            yield [name for name in lacking if is_compared(name)]


def _union(parts: Sequence[Array]) -> Array:
    """All places of some metrics, which mostly have the same."""
    import numpy as np

    if not parts:
        return np.array([], np.int64)
    others = [part for part in parts[1:] if not np.array_equal(part, parts[0])]
    return np.unique(np.concatenate([parts[0], *others])) if others else parts[0]


def _both(first: Array, second: Array) -> Array:
    """The places that are in both."""
    import numpy as np

    return (
        first
        if np.array_equal(first, second)
        else np.intersect1d(first, second, assume_unique=True)
    )
