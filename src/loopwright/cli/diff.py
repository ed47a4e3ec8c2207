"""`loopwright diff [RUN] [RUN]`: differences in config, code, packages and data, and the first
metric that differs."""

from __future__ import annotations

import argparse
from typing import Any

from ..run.changes import Change, values_text
from ..run.compare import Divergence, RunDiff, compare_runs
from ..text import counted
from .output import BOLD, FOUND, OK, print_json, say, styled
from .selection import find_two_runs

MAX_LISTED = 20


def diff_command(options: argparse.Namespace) -> int:
    first, second = find_two_runs(options.first, options.second, options.root)
    diff = compare_runs(first, second, ignore=tuple(options.ignore), strict=options.strict)
    if options.json:
        paths = {"first": str(first.path), "second": str(second.path)}
        parts: dict[str, Any] = {
            name: None if changes is None else [change._asdict() for change in changes]
            for name, changes in diff.parts.items()
        }
        metrics = {divergence.level: divergence.as_json() for divergence in diff.metrics}
        shown = {**paths, "equal": diff.is_same, **parts}
        print_json({**shown, "metrics": metrics, "not_compared": diff.ignored})
    else:
        for title, run in (("first: ", first), ("second:", second)):
            say(f"{title} {run.path} ({run.state})")
        _print_diff(diff, MAX_LISTED if not options.all else None)
    return OK if diff.is_same else FOUND


def _print_diff(diff: RunDiff, most: int | None) -> None:
    for name, changes in diff.parts.items():
        _print_part(name, changes, most)
    for divergence in diff.metrics:
        _print_divergence(divergence)
    if diff.ignored:
        say(f"not compared: {', '.join(diff.ignored)}")
    print(styled("The runs are identical." if diff.is_same else "The runs differ.", BOLD))


def _print_part(name: str, changes: list[Change] | None, most: int | None) -> None:
    if changes is None:
        print(f"{name}: neither run recorded it")
    elif not changes:
        print(f"{name}: same")
    elif len(changes) == 1 and changes[0].key == name:
        say(f"{name}: {values_text(changes[0])}")
    else:
        print(f"{name}: {counted(len(changes), 'difference')}")
        for change in changes[:most]:
            say(f"  {change.key}: {values_text(change)}")
        if most is not None and len(changes) > most:
            print(f"  and {len(changes) - most} more (--all lists them)")


def _print_divergence(divergence: Divergence) -> None:
    what = divergence.level.removesuffix("s")
    same = f"{counted(divergence.num_same, what)} identical"
    if divergence.at is not None:
        before = f"{same} before" if divergence.num_same else f"the first common {what}"
        place = styled(f"metrics per {what}: first difference at {what} {divergence.at}", BOLD)
        print(f"{place} ({before})")
        for change in divergence.changes:
            say(f"  {change.key}: {values_text(change)}{_distance(change)}")
    elif divergence.ends == (None, None):
        print(f"metrics per {what}: neither run has any")
    elif None in divergence.ends or divergence.num_same == 0:
        print(f"metrics per {what}: the runs have none in common")
    else:
        print(f"metrics per {what}: {same}")
    first, second = divergence.ends
    if divergence.at is None and first != second and None not in divergence.ends:
        print(f"  the first run ends at {what} {first}, the second at {what} {second}")
    for which, names in (("first", divergence.only_first), ("second", divergence.only_second)):
        if names:
            say(f"  only the {which} run has {', '.join(names)}")


def _distance(change: Change) -> str:
    if not isinstance(change.first, float) or not isinstance(change.second, float):
        return ""
    return f"  (difference {abs(change.second - change.first):.3g})"
