"""`loopwright runs`: the runs in a folder as a table, filtered and sorted."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import ConfigurationError
from ..metrics.best import ranked
from ..run.metrics_view import BestValue
from ..run.reading import STATES, Run, newest_first
from .commands import ROOT
from .output import OK, age_text, best_text, print_fitted, print_json, say, time_text
from .selection import no_runs_text, short_path


def runs_command(options: argparse.Namespace) -> int:
    root = Path(options.root)
    if not root.is_dir() and options.root != ROOT:
        raise ConfigurationError(
            "no-such-folder",
            f"There is no folder {options.root}: name the folder that has the runs, as in "
            "`loopwright runs DIR`.",
        )
    found = newest_first(root) if root.is_dir() else []
    chosen = _choose(found, options)
    if options.sort == "metric":
        chosen = _by_metric(chosen, options)
    chosen = chosen[: options.limit]
    if options.json:
        print_json([run.as_json(options.metric, options.best) for run in chosen])
    elif chosen:
        _print_table(chosen, root, options)
    elif found:
        say(f"No runs in {options.root} match.")
    else:
        say(no_runs_text(options.root, "use `loopwright runs DIR`"))
    return OK


def _choose(runs: list[Run], options: argparse.Namespace) -> list[Run]:
    if options.state is not None:
        wanted = {state.strip() for state in options.state.split(",")}
        if unknown := wanted - set(STATES):
            raise ConfigurationError(
                "unknown-state",
                f"--state {', '.join(sorted(unknown))}: a run is one of {', '.join(STATES)}.",
            )
        runs = [run for run in runs if run.state in wanted]
    for tag in options.tag:
        runs = [run for run in runs if tag in run.tags]
    return runs


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
        if name is None:
            continue
        if options.best is None and name in run.epoch_names and run.mode_of(name) is None:
            raise ConfigurationError(
                "unknown-best",
                f"--sort metric compares the best values of {name!r}, and neither its name nor "
                f"the run {run.name!r} says whether smaller or larger values are better: add "
                "--best min or --best max.",
            )
        best = run.best_of(name, options.best)
        if best is not None:
            found[run] = best
    known = ranked(found, lambda run: found[run].value, lambda run: found[run].mode or "min")
    return [*known, *(run for run in runs if run not in found)]


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
