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

from ..errors import ConfigurationError
from ..metrics.best import Mode, ranked
from ..run.metrics_view import BestValue
from ..run.reading import STATES, Run, newest_first
from .commands import ROOT
from .output import OK, age_text, best_text, print_fitted, print_json, printable, time_text
from .selection import no_runs_text, short_path

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|<|>)\s*([-+\w.]+)\s*")


def runs_command(options: argparse.Namespace) -> int:
    root = Path(options.root)
    if not root.is_dir():
        if options.root == ROOT:
            return _print_nothing(options)
        raise ConfigurationError(
            "no-such-folder",
            f"There is no folder {options.root}: name the folder that has the runs, as in "
            "`loopwright runs DIR`.",
        )
    chosen = ORDERS[options.sort](_choose(newest_first(root), options), options)
    chosen = (chosen[::-1] if options.reverse else chosen)[: options.limit]
    if options.json:
        print_json([run.as_json(options.metric, options.best) for run in chosen])
    elif chosen:
        _print_table(chosen, root, options)
    else:
        return _print_nothing(options)
    return OK


def _print_nothing(options: argparse.Namespace) -> int:
    is_filtered = options.state or options.name or options.tag or options.where
    text = no_runs_text(options.root, "use `loopwright runs DIR`")
    if is_filtered or options.limit == 0:
        text = f"No runs in {options.root} match."
    print("[]" if options.json else printable(text))
    return OK


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


def _far_first(run: Run) -> tuple[float, int]:
    return -(run.progress.fraction or 0.0), -(run.progress.update or 0)


ORDERS: dict[str, Callable[[list[Run], argparse.Namespace], list[Run]]] = {
    "age": lambda runs, options: runs,
    "name": lambda runs, options: sorted(runs, key=lambda run: (run.name, str(run.path))),
    "state": lambda runs, options: sorted(runs, key=lambda run: STATES.index(run.state)),
    "progress": lambda runs, options: sorted(runs, key=_far_first),
    "metric": _by_metric,
    "time": lambda runs, options: sorted(runs, key=lambda run: run.seconds or 0.0, reverse=True),
}


def _print_table(runs: list[Run], root: Path, options: argparse.Namespace) -> None:
    """Print a row for each run, and what of the runs cannot be read."""
    has_tags = any(run.tags for run in runs)
    problems: list[str] = []
    rows = []
    for run in runs:
        tags = [" ".join(run.tags) or "-"] if has_tags else []
        best = best_text(run, options.metric, options.best)
        cells = [run.state, str(run.progress), best, time_text(run.seconds)]
        rows.append([short_path(run, root), *cells, age_text(run.age), *tags])
        problems += [f"{short_path(run, root)}: {problem}" for problem in run.problems]
    header = ["RUN", "STATE", "PROGRESS", "BEST @EPOCH", "TIME", "AGE"]
    print_fitted([*header, *(["TAGS"] if has_tags else [])], rows, right="45", fold="0236")
    for problem in problems:
        print(printable(problem))
