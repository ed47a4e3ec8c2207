"""Differences between runs: config, code and machine, and the first step and epoch where their
metrics diverge; what `loopwright diff` and the page show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

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


@dataclass(slots=True)
class Divergence:
    """How far the metrics of two runs are equal, bit for bit."""

    level: str  # "steps" or "epochs"
    num_same: int = 0  # steps or epochs of both runs before they diverge
    at: int | None = None
    changes: tuple[Change, ...] = ()
    # the last step or epoch of each run, where they do not diverge
    ends: tuple[int | None, int | None] = (None, None)
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        has_same_end = self.at is None and self.ends[0] == self.ends[1]
        return has_same_end and not self.only_first and not self.only_second

    def as_json(self) -> dict[str, Any]:
        """The divergence as the command prints it and the page reads it."""
        return {**asdict(self), "changes": [change._asdict() for change in self.changes]}


@dataclass(frozen=True, slots=True)
class RunDiff:
    """All differences between two runs; a part that neither run recorded is None."""

    parts: dict[str, list[Change] | None]
    metrics: tuple[Divergence, Divergence]
    ignored: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        has_same_metrics = all(divergence.is_same for divergence in self.metrics)
        return has_same_metrics and not any(self.parts.values())


def compare_runs(
    first: Run, second: Run, *, ignore: tuple[str, ...] = (), strict: bool = False
) -> RunDiff:
    """Compare two runs, without metrics that match a pattern of `ignore` and, unless `strict`,
    measured times."""
    parts: dict[str, list[Change] | None] = {}
    for name in PARTS:
        ours = describe_part(first, name)
        theirs = describe_part(second, name)
        is_known = bool(ours or theirs)
        parts[name] = find_changes(ours, theirs, is_identical) if is_known else None
    return RunDiff(parts, *compare_metrics(first, second, ignore=ignore, strict=strict))


def compare_parts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The values that are not the same in all runs, part by part."""
    found = []
    for part in PARTS:
        described = [describe_part(run, part) for run in runs]
        for key in dict.fromkeys(key for values in described for key in values):
            has = [key in values for values in described]
            values = [values.get(key) for values in described]
            if not all(has) or not all(is_identical(values[0], value) for value in values):
                found.append({"part": part, "key": key, "values": values, "has": has})
    return found


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


def describe_part(run: Run, part: str) -> dict[str, object]:
    """Config, code, packages, seed, hardware or data of a run under dotted keys; empty where the run
    lacks it."""
    value = PARTS[part](run)
    return flatten(value) if value else {}


def _config(run: Run) -> object:
    config = run.config_file
    given = run.settings if config is None else {**config, **compile_choice(run.manifest)}
    return {key: value for key, value in given.items() if key not in OWN}


def _code(run: Run) -> object:
    """The commit, the uncommitted changes, and the hashes of the program's own modules."""
    found = {}
    for name, title in (("git_commit", "commit"), ("git_dirty", "uncommitted changes")):
        if run.manifest.get(name) is not None:
            found[title] = run.manifest[name]
    for path in sorted((*run.path.rglob("*.py"), run.path / "code.diff")):
        below = path.relative_to(run.path)
        if path.is_file() and below.parts[0] not in FOLDERS:
            found[str(below)] = hash_file(path)[:12]
    return found


def _noted(run: Run, *names: str, table: str = "") -> dict[str, object]:
    """Entries of the manifest that are known, after those of one of its tables."""
    known = {name: run.manifest[name] for name in names if name in run.manifest}
    return {**run.manifest.get(table, {}), **known}


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
    found = Divergence(f"{level}s")
    ends = (_last(first, level), _last(second, level))
    last = -1 if None in ends else min(end for end in ends if end is not None)
    only_first: dict[str, None] = {}
    only_second: dict[str, None] = {}
    start = 0
    size = FIRST_WINDOW
    while start <= last and found.at is None:
        ours = _window(first, level, start, size, is_compared)
        theirs = _window(second, level, start, size, is_compared)
        found.at, found.changes = _first_changes(ours, theirs)
        common = np.intersect1d(_all_places(ours), _all_places(theirs))
        if found.at is not None:
            common = common[common <= found.at]
        found.num_same += len(common) - (found.at is not None)
        only_first |= dict.fromkeys(_lacking(ours, theirs, common))
        only_second |= dict.fromkeys(_lacking(theirs, ours, common))
        start += size
        size *= 2
    if found.at is None:
        found.ends = ends
    found.only_first = tuple(only_first)
    found.only_second = tuple(only_second)
    return found


def _window(
    metrics: MetricsView, level: Level, start: int, size: int, is_compared: Callable[[str], bool]
) -> PlacesAndValues:
    found = metrics.between(level, start, start + size)
    return {name: found[name] for name in found if is_compared(name)}


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
    first_at: int | None = None
    changes: list[Change] = []
    for name in first:
        if name not in second:
            continue
        places, ours = first[name]
        others, theirs = second[name]
        both, mine, their = np.intersect1d(places, others, assume_unique=True, return_indices=True)
        ours = ours[mine]
        theirs = theirs[their]
        differ = np.flatnonzero(ours.view(np.int64) != theirs.view(np.int64))
        if not len(differ):
            continue
        index = differ[0]
        at = int(both[index])
        if first_at is None or at < first_at:
            first_at = at
            changes = []
        if at == first_at:
            changes.append(Change(name, float(ours[index]), float(theirs[index])))
    return first_at, tuple(changes)


def _all_places(run: PlacesAndValues) -> Array:
    """All places of the metrics of a run."""
    parts = [places for places, _ in run.values()]
    return np.unique(np.concatenate(parts)) if parts else np.array([], np.int64)


def _lacking(run: PlacesAndValues, other: PlacesAndValues, common: Array) -> list[str]:
    """The metrics of a run that the other one lacks at a place of both."""
    found = []
    for name, (places, _) in run.items():
        known = other[name][0] if name in other else common[:0]
        if len(np.setdiff1d(np.intersect1d(places, common), known)):
            found.append(name)
    return found
