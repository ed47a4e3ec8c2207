"""`loopwright eval RUN`: what a run's model is worth, measured once more or on other data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..run.reading import RunView
from .adding import add_command
from .exits import OK
from .finding import RUN, add_root, find_run, short_path
from .output import number_text, print_json, print_table, printable

MORE = """\
The model, the data and the trainer are built from the config and the code that were kept in the run directory. Without
--data the evaluation callbacks of the run measure what they measure, once; where it has none, the losses on every data
set but `train` are computed. With --data, the losses on that data set of its config. Nothing of the run is changed."""
EXAMPLE = """\
eval last
eval digits --data test --checkpoint best
eval runs/digits/20260102T030405-a1b2c3 --json"""
CHECKPOINT = "newest (the default), best, the number of an update, the name of a checkpoint of the run, or a path"


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Evaluate the model of a run."
    parser = add_command(parsers, common, "eval", run=eval_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("--data", metavar="KEY", help="a data set of the run's config, such as test")
    parser.add_argument("--checkpoint", metavar="WHICH", default="newest", help=CHECKPOINT)
    parser.add_argument("--json", action="store_true", help="print JSON: run, checkpoint and metrics")
    add_root(parser)


def eval_command(options: argparse.Namespace) -> int:
    from ..doors.configured import Experiment
    from .failing import explained

    run = find_run(options.name, options.root)
    checkpoint = choose_checkpoint(run, options.checkpoint)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        metrics = experiment.evaluate(options.data, checkpoint=checkpoint)
    if not metrics:
        raise ConfigurationError(
            f"{run.path} has no evaluation callbacks and no data set besides `train`: name what to evaluate on with "
            "--data KEY."
        )
    _print(run, checkpoint, metrics, options)
    return OK


def choose_checkpoint(run: RunView, which: str) -> Path:
    """The checkpoint that is meant, as a path."""
    from .export import pick_checkpoint

    is_path = which not in ("best", "newest") and not which.isdecimal() and Path(which).is_dir()
    return Path(which).absolute() if is_path else pick_checkpoint(run, which).path


def checkpoint_name(run: RunView, checkpoint: Path) -> str:
    """Where in the run it is, or else where it is; a kept model with the metric it was kept by."""
    name = str(checkpoint.relative_to(run.path)) if checkpoint.is_relative_to(run.path) else str(checkpoint)
    metric = next((info.metric for info in run.checkpoints() if info.path == checkpoint), None)
    return name if metric is None else f"{name}, {metric[0]} {number_text(metric[1])}"


def _print(run: RunView, checkpoint: Path, metrics: dict[str, float], options: argparse.Namespace) -> None:
    from .train import is_first_process

    if not is_first_process():
        return
    if options.json:
        print_json({"run": str(run.path), "checkpoint": str(checkpoint), "metrics": metrics})
        return
    print(printable(f"{short_path(run, options.root)}, {checkpoint_name(run, checkpoint)}"))
    print_table(["METRIC", "VALUE"], [[name, number_text(value)] for name, value in metrics.items()], right="1")
