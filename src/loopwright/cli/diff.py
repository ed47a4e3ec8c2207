"""`loopwright diff RUN RUN`: differences in config, code, packages and data, and the first metric that differs."""

from __future__ import annotations

import argparse
from typing import Any

from ..run.changes import Change, values_text
from ..run.compare import Divergence, RunDiff, compare_runs
from .arguments import RUN, add_command, add_root, find_run
from .exits import FOUND, OK
from .output import BOLD, print_json, printable, styled

MORE = """\
Config, code, packages, seed, hardware and data are compared value by value (not what names a run: its name, tags and
folder), then the metrics of every step and epoch bit for bit, up to the first that differs. Metrics of time and
memory are left out, since they never agree. Exit code 1: something differs."""
EXAMPLE = """\
diff runs/first runs/second
diff -2 last --ignore 'lr*'"""
MAX_LISTED = 20


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Show where two runs differ."
    parser = add_command(parsers, common, "diff", run=diff_command, what=what, more=MORE, example=EXAMPLE)
    for name in ("first", "second"):
        parser.add_argument(name, metavar="RUN", help=RUN)
    add_root(parser)
    parser.add_argument(
        "--ignore", metavar="NAME", action="append", default=[], help="leave out this metric (*, ?; repeat)"
    )
    parser.add_argument("--strict", action="store_true", help="compare metrics of time and memory too")
    parser.add_argument("--all", action="store_true", help=f"list every difference, not only {MAX_LISTED} of a kind")
    parser.add_argument("--json", action="store_true", help="print JSON")


def diff_command(options: argparse.Namespace) -> int:
    first, second = (find_run(name, options.root) for name in (options.first, options.second))
    diff = compare_runs(first, second, ignore=tuple(options.ignore), strict=options.strict)
    if options.json:
        paths = {"first": str(first.path), "second": str(second.path)}
        print_json({**paths, "equal": diff.is_same, **_as_json(diff)})
    else:
        for title, run in (("first: ", first), ("second:", second)):
            print(printable(f"{title} {run.path} ({run.state})"))
        _print_diff(diff, MAX_LISTED if not options.all else None)
    return OK if diff.is_same else FOUND


def _print_diff(diff: RunDiff, most: int | None) -> None:
    for name, changes in diff.parts.items():
        _print_part(name, changes, most)
    for divergence in diff.metrics:
        _print_divergence(divergence)
    if diff.ignored:
        print(printable(f"not compared: {', '.join(diff.ignored)}"))
    print(styled("They are the same." if diff.is_same else "They differ.", BOLD))


def _print_part(name: str, changes: list[Change] | None, most: int | None) -> None:
    if changes is None:
        print(f"{name}: not known of either")
    elif not changes:
        print(f"{name}: same")
    elif len(changes) == 1 and changes[0].key == name:
        print(printable(f"{name}: {values_text(changes[0])}"))
    else:
        print(f"{name}: {len(changes)} {'difference' if len(changes) == 1 else 'differences'}")
        for change in changes[:most]:
            print("  " + printable(f"{change.key}: {values_text(change)}"))
        if most is not None and len(changes) > most:
            print(f"  and {len(changes) - most} more (--all lists them)")


def _print_divergence(divergence: Divergence) -> None:
    what = {"steps": "step", "epochs": "epoch"}[divergence.level]
    if divergence.at is not None:
        before = _count(divergence.num_same, what) if divergence.num_same else "the first that both have"
        print(styled(f"metrics of {divergence.level}: they part at {what} {divergence.at}", BOLD) + f" ({before})")
        for change in divergence.changes:
            print("  " + printable(f"{change.key}: {values_text(change)}{_distance(change)}"))
    elif divergence.ends == (None, None):
        print(f"metrics of {divergence.level}: neither has any")
    elif None in divergence.ends or divergence.num_same == 0:
        print(f"metrics of {divergence.level}: nothing that both have")
    else:
        print(f"metrics of {divergence.level}: {_count(divergence.num_same, what)}")
    if divergence.at is None and divergence.ends[0] != divergence.ends[1] and None not in divergence.ends:
        print(f"  the first goes on to {what} {divergence.ends[0]}, the second to {divergence.ends[1]}")
    for which, names in (("first", divergence.only_first), ("second", divergence.only_second)):
        if names:
            print("  " + printable(f"only the {which} has {', '.join(names)}"))


def _count(number: int, what: str) -> str:
    return f"the same in {number} {what}{'' if number == 1 else 's'}, bit for bit"


def _distance(change: Change) -> str:
    if not isinstance(change.first, float) or not isinstance(change.second, float):
        return ""
    return f"  (by {abs(change.second - change.first):.3g})"


def _as_json(diff: RunDiff) -> dict[str, Any]:
    return {
        **{name: None if part is None else [_change_as_json(c) for c in part] for name, part in diff.parts.items()},
        "metrics": {
            divergence.level: {
                "part_at": divergence.at,
                "same": divergence.num_same,
                "changes": [_change_as_json(change) for change in divergence.changes],
                "ends": divergence.ends,
                "only_first": divergence.only_first,
                "only_second": divergence.only_second,
            }
            for divergence in diff.metrics
        },
        "not_compared": diff.ignored,
    }


def _change_as_json(change: Change) -> dict[str, Any]:
    return {"key": change.key, "first": change.first, "second": change.second}
