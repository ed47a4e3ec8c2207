"""`loopwright runs`: the runs in a folder as a table, filtered and sorted."""

from __future__ import annotations

import argparse
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..metrics.best import Mode, ranked
from ..run.metrics_view import BestValue
from ..run.reading import STATES, Run, newest_first
from ..text import counted
from .commands import ROOT
from .exits import OK
from .live import HINT, is_terminal, show_live
from .output import (
    age_text,
    best_text,
    fitted_table,
    print_fitted,
    print_json,
    printable,
    time_text,
)
from .selection import no_runs_text, short_path

if TYPE_CHECKING:
    from rich.console import Group

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
WATCH_SECONDS = 2.0
CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|<|>)\s*([-+\w.]+)\s*")


def runs_command(options: argparse.Namespace) -> int:
    root = Path(options.root)
    if not root.is_dir():
        if options.root == ROOT and not options.watch:
            return _print_nothing(options)
        raise ConfigurationError(
            "no-such-folder",
            f"There is no folder {options.root}: name the folder that has the runs, as in "
            "`loopwright runs DIR`.",
        )
    if options.watch and not options.json and is_terminal():
        show_live(lambda console: _screen(root, options, console.size.height), WATCH_SECONDS)
        return OK
    chosen = _ordered(root, options)
    if options.json:
        print_json([run.as_json(options.metric, options.best) for run in chosen])
    elif chosen:
        rows, problems = _rows(chosen, root, options)
        print_fitted(_header(chosen), rows, right="45", fold="0236")
        for problem in problems:
            print(printable(problem))
    else:
        return _print_nothing(options)
    return OK


def _print_nothing(options: argparse.Namespace) -> int:
    print("[]" if options.json else printable(_nothing(options)))
    return OK


def _ordered(root: Path, options: argparse.Namespace) -> list[Run]:
    chosen = ORDERS[options.sort](_choose(newest_first(root), options), options)
    return (chosen[::-1] if options.reverse else chosen)[: options.limit]


def _nothing(options: argparse.Namespace) -> str:
    return (
        f"No runs in {options.root} match."
        if _is_filtered(options)
        else no_runs_text(options.root, "use `loopwright runs DIR`")
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of the best value of a metric with a number."""

    name: str
    compare: Callable[[float, float], bool]
    number: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        match = CONDITION.fullmatch(text)
        try:
            number = float(match[3]) if match else math.nan
        except ValueError:
            number = math.nan
        if match is None or math.isnan(number):
            raise ConfigurationError(
                "malformed-condition",
                f"--where {text!r}: write a metric, one of < > <= >=, and a number, as in "
                "'eval_loss<0.5'.",
            )
        return cls(match[1], COMPARISONS[match[2]], number)

    def fits(self, run: Run, mode: Mode | None) -> bool:
        best = best_to_compare(run, self.name, mode, "--where")
        return best is not None and self.compare(best.value, self.number)


def best_to_compare(run: Run, name: str, mode: Mode | None, option: str) -> BestValue | None:
    """The best value of a metric, None where it was not measured; an error where it is not known
    what is better."""
    if mode is None and name in run.epoch_names and run.mode_of(name) is None:
        raise ConfigurationError(
            "unknown-best",
            f"{option} compares the best values of {name!r}, and neither its name nor the run "
            f"{run.name!r} says whether smaller or larger values are better: add --best min or "
            "--best max.",
        )
    return run.best_of(name, mode)


def _choose(runs: list[Run], options: argparse.Namespace) -> list[Run]:
    if options.state is not None:
        wanted = {state.strip() for state in options.state.split(",")}
        if unknown := wanted - set(STATES):
            raise ConfigurationError(
                "unknown-state",
                f"--state {', '.join(sorted(unknown))}: a run is one of {', '.join(STATES)}.",
            )
        runs = [run for run in runs if run.state in wanted]
    if options.name is not None:
        runs = [run for run in runs if _is_named(run, options.name, options.root)]
    for tag in options.tag:
        runs = [run for run in runs if tag in run.tags]
    for condition in map(Condition.parse, options.where):
        runs = [run for run in runs if condition.fits(run, options.best)]
    return runs


def _is_named(run: Run, wanted: str, root: str) -> bool:
    words = (run.name, short_path(run, root))
    has_wildcard = any(mark in wanted for mark in "*?[")
    return any(fnmatchcase(word, wanted) if has_wildcard else wanted in word for word in words)


def _is_filtered(options: argparse.Namespace) -> bool:
    return bool(options.state or options.name or options.tag or options.where or options.limit == 0)


def _by_metric(runs: list[Run], options: argparse.Namespace) -> list[Run]:
    """Best first; those without the metric last."""
    modes = {run.mode_of(options.metric) for run in runs if options.metric in run.epoch_names}
    if options.best is None and {"min", "max"} <= modes:
        raise ConfigurationError(
            "differing-best",
            f"--sort metric: some of these runs record that smaller values of {options.metric!r} "
            "are better, and others that larger values are: add --best min or --best max.",
        )

    known = []
    unknown = []
    for run in runs:
        name = options.metric or run.main_metric
        best = best_to_compare(run, name, options.best, "--sort metric") if name else None
        if best is None:
            unknown.append(run)
        else:
            known.append((run, best))
    best_first = ranked(known, lambda pair: pair[1].value, lambda pair: pair[1].mode or "min")
    return [run for run, _ in best_first] + unknown


def _by_progress(runs: list[Run], options: argparse.Namespace) -> list[Run]:
    return sorted(
        runs, key=lambda run: (run.progress.fraction or 0.0, run.progress.update or 0), reverse=True
    )


ORDERS: dict[str, Callable[[list[Run], argparse.Namespace], list[Run]]] = {
    "age": lambda runs, options: runs,
    "name": lambda runs, options: sorted(runs, key=lambda run: (run.name, str(run.path))),
    "state": lambda runs, options: sorted(runs, key=lambda run: STATES.index(run.state)),
    "progress": _by_progress,
    "metric": _by_metric,
    "time": lambda runs, options: sorted(runs, key=lambda run: run.seconds or 0.0, reverse=True),
}


def _header(runs: list[Run]) -> list[str]:
    tags = ["TAGS"] if any(run.tags for run in runs) else []
    return ["RUN", "STATE", "PROGRESS", "BEST @EPOCH", "TIME", "AGE", *tags]


def _rows(
    runs: list[Run], root: Path, options: argparse.Namespace
) -> tuple[list[list[str]], list[str]]:
    """The rows of the table, and what of the runs cannot be read."""
    has_tags = any(run.tags for run in runs)
    problems: list[str] = []
    rows = []
    for run in runs:
        tags = [" ".join(run.tags) or "-"] if has_tags else []
        best = best_text(run, options.metric, options.best)
        cells = [run.state, str(run.progress), best, time_text(run.seconds)]
        rows.append([short_path(run, root), *cells, age_text(run.age), *tags])
        problems += [f"{short_path(run, root)}: {problem}" for problem in run.problems]
    return rows, problems


def _screen(root: Path, options: argparse.Namespace, height: int) -> Group:
    """The table as it is now, with the time that is left in it: as many runs as there are lines."""
    from rich.console import Group
    from rich.text import Text

    runs = _ordered(root, options)
    if not runs:
        return Group(Text(_nothing(options)), Text(HINT, style="dim"))
    shown = runs[: max(height - 4, 1)]
    rows, _ = _rows(shown, root, options)
    header = [*_header(shown), "LEFT"]
    rows = [[*row, time_text(run.eta)] for row, run in zip(rows, shown, strict=True)]
    table = fitted_table(header, rows, right=f"45{len(header) - 1}", fold="0236")
    running = sum(run.state == "running" for run in runs)
    more = (
        f", {len(shown)} of them shown (choose with --limit, --state or --name)"
        if len(shown) < len(runs)
        else ""
    )
    return Group(
        table, Text(f"{counted(len(runs), 'run')}, {running} running{more}  {HINT}", style="dim")
    )
