"""Differences between two runs: config, code and machine, and the first step and epoch where their
metrics diverge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias

import numpy as np

from ..checkpoint.manifest import hash_file
from .changes import Change, find_changes, flatten, is_identical
from .curves import Array
from .directory import FOLDERS
from .metrics_view import MetricsView
from .reading import Run, compile_choice
from .schema import Level

PlacesAndValues: TypeAlias = Mapping[str, tuple[Array, Array]]
# steps or epochs that are compared at once; each window is twice as long as the one before
FIRST_WINDOW = 4096
# keys of a config that name a run and do not change its training
OWN = ("name", "output_path", "tags", "resume")
# metrics of the machine
MEASURED = re.compile(r"(^|[_/.])(time|seconds|second|eta|memory|throughput|speed)($|[_/.])")


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the metrics of two runs are equal, bit for bit."""

    level: str  # "steps" or "epochs"
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
        is_ignored = any(fnmatchcase(name, pattern) for pattern in ignore)
        if is_ignored or (not strict and MEASURED.search(name)):
            left_out.add(name)
            return False
        return True

    steps = _compare_level(first.metrics, second.metrics, "step", is_compared)
    epochs = _compare_level(first.metrics, second.metrics, "epoch", is_compared)
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
    noted = _noted(run, "git_commit", "git_dirty")
    names = {"git_commit": "commit", "git_dirty": "uncommitted changes"}
    found = {names[name]: value for name, value in noted.items()}
    for path in sorted((*run.path.rglob("*.py"), run.path / "code.diff")):
        below = path.relative_to(run.path)
        if path.is_file() and below.parts[0] not in FOLDERS:
            found[str(below)] = hash_file(path)[:12]
    return found


def _noted(run: Run, *names: str, table: str = "") -> dict[str, object]:
    """Entries of the manifest that are known, after those of one of its tables."""
    listed = run.manifest.get(table)
    own = {name: run.manifest[name] for name in names if run.manifest.get(name) is not None}
    return {**(listed if isinstance(listed, dict) else {}), **own}


PARTS: dict[str, Callable[[Run], object]] = {
    "config": _config,
    "code": _code,
    "packages": lambda run: _noted(run, "python", "loopwright", "torch", table="packages"),
    "seed": lambda run: _noted(run, "seed"),
    "hardware": lambda run: _noted(run, "platform", "device", table="hardware"),
    "data": lambda run: run.manifest.get("data"),
}


def _compare_level(
    first: MetricsView, second: MetricsView, level: Level, is_compared: Callable[[str], bool]
) -> Divergence:
    """Compare both runs until they diverge, in windows that grow; steps that only one of them
    logged are skipped."""
    ends = _last(first, level), _last(second, level)
    last = -1 if None in ends else min(end for end in ends if end is not None)
    only: tuple[dict[str, None], dict[str, None]] = ({}, {})
    at = None
    changes: tuple[Change, ...] = ()
    num_same = 0
    start = 0
    size = FIRST_WINDOW
    while start <= last and at is None:
        runs = [run.between(level, start, start + size) for run in (first, second)]
        runs = [{name: run[name] for name in run if is_compared(name)} for run in runs]
        at, changes = _first_changes(*runs)
        common = np.intersect1d(_all_places(runs[0]), _all_places(runs[1]))
        num_same += len(common if at is None else common[common < at])
        shown = common if at is None else common[common <= at]
        only[0].update(dict.fromkeys(_lacking(runs[0], runs[1], shown)))
        only[1].update(dict.fromkeys(_lacking(runs[1], runs[0], shown)))
        start += size
        size *= 2
    ends = ends if at is None else (None, None)
    return Divergence(f"{level}s", num_same, at, changes, ends, tuple(only[0]), tuple(only[1]))


def _last(metrics: MetricsView, level: Level) -> int | None:
    """The last step or epoch of a run."""
    if level == "step":
        step = metrics.last_step()
        return None if step is None else step[0]
    epoch = metrics.last_epoch()
    return None if epoch is None else epoch.at


def _first_changes(
    first: PlacesAndValues, second: PlacesAndValues
) -> tuple[int | None, tuple[Change, ...]]:
    """The first place at which a metric of both differs in a bit, and the metrics that do there."""
    found: dict[str, tuple[int, float, float]] = {}
    for name in first.keys() & second.keys():
        places, ours = first[name]
        others, theirs = second[name]
        both, mine, their = np.intersect1d(places, others, assume_unique=True, return_indices=True)
        ours = ours[mine]
        theirs = theirs[their]
        differ = np.flatnonzero(ours.view(np.int64) != theirs.view(np.int64))
        if len(differ):
            at = differ[0]
            found[name] = (int(both[at]), float(ours[at]), float(theirs[at]))
    at = min((place for place, _, _ in found.values()), default=None)
    names = [name for name in first if name in found and found[name][0] == at]
    return at, tuple(Change(name, *found[name][1:]) for name in names)


def _all_places(run: PlacesAndValues) -> Array:
    """All places of the metrics of a run."""
    parts = [places for places, _ in run.values()]
    return np.unique(np.concatenate(parts)) if parts else np.array([], np.int64)


def _lacking(run: PlacesAndValues, other: PlacesAndValues, common: Array) -> list[str]:
    """The metrics of a run that the other one lacks at a place of both."""
    found = []
    for name, (places, _) in run.items():
        known = other[name][0] if name in other else common[:0]
        if (np.isin(places, common) & ~np.isin(places, known)).any():
            found.append(name)
    return found
