"""`loopwright eval RUN` and `loopwright predict RUN`: metrics or outputs of a run's model on a data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..run.reading import RunView
from .arguments import RUN, add_command, add_root, find_run, short_path
from .exits import OK
from .output import number_text, print_json, print_table, printable, size_text

if TYPE_CHECKING:
    from ..data.open import Stream
    from ..doors.configured import BaseTrainer


EVAL_MORE = """\
The model, the data and the trainer are built from the config and the code that were kept in the run directory. Without
--data the evaluation callbacks of the run measure what they measure, once; where it has none, the losses on every data
set but `train` are computed. With --data, the losses on that data set of its config. Nothing of the run is changed."""
EVAL_EXAMPLE = """\
eval last
eval digits --data test --checkpoint best
eval runs/digits/20260102T030405-a1b2c3 --json"""
CHECKPOINT = "newest (the default), best, the number of an update, the name of a checkpoint of the run, or a path"
PREDICT_MORE = """\
The model and the data are built from the config and the code that were kept in the run directory. The first dimension
of what is written is the samples of the data set, in its order; the name of the file says how it is written:

  .safetensors  tensors under their names: `output`, the keys of a dict of outputs, `output.0`, `output.1` of a tuple
  .npy          numpy, for a model with one output
  .npz          numpy, for a model with several
  .json         lists of numbers; also what is no tensor"""
PREDICT_EXAMPLE = """\
predict last --data test --output predictions.safetensors
predict digits --data test --checkpoint best -o digits.npy"""


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add both commands."""
    add_eval(parsers, common)
    add_predict(parsers, common)


def add_eval(parsers: Any, common: argparse.ArgumentParser) -> None:
    what = "Evaluate the model of a run."
    parser = add_command(parsers, common, "eval", run=eval_command, what=what, more=EVAL_MORE, example=EVAL_EXAMPLE)
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("--data", metavar="KEY", help="a data set of the run's config, such as test")
    parser.add_argument("--checkpoint", metavar="WHICH", default="newest", help=CHECKPOINT)
    parser.add_argument("--json", action="store_true", help="print JSON: run, checkpoint and metrics")
    add_root(parser)


def eval_command(options: argparse.Namespace) -> int:
    from ..doors.configured import Experiment
    from .exits import explained

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
    """The path of a checkpoint that is named by path, name, update, `best` or `newest`."""
    from .export import pick_checkpoint

    is_path = which not in ("best", "newest") and not which.isdecimal() and Path(which).is_dir()
    return Path(which).absolute() if is_path else pick_checkpoint(run, which).path


def checkpoint_name(run: RunView, checkpoint: Path) -> str:
    """The path of a checkpoint relative to its run, the full path of one elsewhere; with the metric it was kept by."""
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


def add_predict(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Write the outputs of a run's model for a data set."
    parser = add_command(
        parsers, common, "predict", run=predict_command, what=what, more=PREDICT_MORE, example=PREDICT_EXAMPLE
    )
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("--data", metavar="KEY", required=True, help="a data set of the run's config, such as test")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    parser.add_argument("--checkpoint", metavar="WHICH", default="newest", help=CHECKPOINT)
    parser.add_argument("--force", action="store_true", help="replace FILE if it is there")
    add_root(parser)


def predict_command(options: argparse.Namespace) -> int:
    from ..doors.configured import Experiment
    from .exits import explained
    from .predictions import joined, write_predictions
    from .train import is_first_process

    output = _destination(Path(options.output), options.force)
    run = find_run(options.name, options.root)
    checkpoint = choose_checkpoint(run, options.checkpoint)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        with _watched(experiment.ready(checkpoint)):
            batches = experiment.predict(options.data, checkpoint=checkpoint)
    if not is_first_process():
        return OK
    outputs = joined(batches)
    write_predictions(output, outputs)
    shapes = ", ".join(f"{name} {_shape(value)}" for name, value in outputs.items())
    source = checkpoint_name(run, checkpoint)
    print(printable(f"{source} on {options.data}: {shapes} written to {output} ({size_text(output.stat().st_size)})."))
    return OK


def _destination(output: Path, force: bool) -> Path:
    """Check before anything is computed that the file can be written in the format of its suffix."""
    from .predictions import SUFFIXES

    if output.suffix not in SUFFIXES:
        raise ConfigurationError(f"--output {output}: the name of the file ends in {', '.join(SUFFIXES)}.")
    if output.exists() and not force:
        raise ConfigurationError(f"{output} is there already: choose another --output, or pass --force to replace it.")
    if not output.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {output}: there is no folder {output.parent}.")
    return output


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return (
        f"of {len(value)} {'batch' if len(value) == 1 else 'batches'}" if shape is None else " x ".join(map(str, shape))
    )


@contextmanager
def _watched(trainer: BaseTrainer) -> Iterator[None]:
    """Show a progress bar on a terminal; it goes to stderr, and the result to stdout."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    from ..callback import Callback
    from ..data.stream import StreamWrapper

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting", total=None)

        class Counted(StreamWrapper):
            def take(self, count: int, max_samples: int | None = None) -> Any:
                batches = self._stream.take(count, max_samples)
                bar.update(task, advance=len(batches), total=self.num_batches)
                return batches

        class Watch(Callback):
            def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
                return Counted(stream)

        trainer.engine.add_callback(Watch())
        yield
