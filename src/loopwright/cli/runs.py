"""`loopwright runs`: the runs in a folder as a table, filtered and sorted."""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import ConfigurationError
from ..metrics.best import Mode, ranked
from ..run.metrics_view import BestValue
from ..run.reading import STATES, Run, newest_first
from .commands import ROOT
from .output import OK, age_text, best_text, print_fitted, print_json, say, time_text
from .selection import no_runs_text, short_path

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf"
CONDITION = re.compile(rf"\s*(.+?)\s*(<=|>=|<|>)\s*({NUMBER})\s*")


def runs_command(options: argparse.Namespace) -> int:
    root = Path(options.root)
    if not root.is_dir() and options.root != ROOT:
        raise ConfigurationError(
            "no-such-folder",
            f"There is no folder {options.root}: name the folder that has the runs, as in "
            "`loopwright runs DIR`.",
        )
    found = newest_first(root) if root.is_dir() else []
    chosen = ORDERS[options.sort](_choose(found, options), options)
    chosen = (chosen[::-1] if options.reverse else chosen)[: options.limit]
    if options.json:
        print_json([run.as_json(options.metric, options.best) for run in chosen])
    elif chosen:
        _print_table(chosen, root, options)
    elif found:
        say(f"No runs in {options.root} match.")
    else:
        say(no_runs_text(options.root, "use `loopwright runs DIR`"))
    return OK


def parse_condition(text: str) -> tuple[str, Callable[[float, float], bool], float]:
    """The metric, the comparison and the number of a condition such as `eval_loss<0.5`."""
    match = CONDITION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            "malformed-condition",
            f"--where {text!r}: write a metric, one of < > <= >=, and a number, as in "
            "'eval_loss<0.5'.",
        )
    return match[1], COMPARISONS[match[2]], float(match[3])


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
    for name, compare, number in map(parse_condition, options.where):
        found = [(run, best_to_compare(run, name, options.best, "--where")) for run in runs]
        runs = [run for run, best in found if best is not None and compare(best.value, number)]
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
    found: dict[Run, BestValue] = {}
    for run in runs:
        name = options.metric or run.main_metric
        best = best_to_compare(run, name, options.best, "--sort metric") if name else None
        if best is not None:
            found[run] = best
    known = ranked(found, lambda run: found[run].value, lambda run: found[run].mode or "min")
    return [*known, *(run for run in runs if run not in found)]


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
        say(problem)
