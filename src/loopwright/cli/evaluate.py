"""`loopwright eval [RUN]` and `loopwright predict [RUN]`: metrics or outputs of a run's model on a
data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..run.reading import RunView
from .arguments import add_checkpoint, add_command, add_run
from .exits import OK
from .output import number_text, print_json, print_table, printable, size_text
from .selection import (
    checkpoint_name,
    find_run,
    lines_in_python,
    pick_checkpoint,
    require_config,
    short_path,
)

if TYPE_CHECKING:
    from ..checkpoint import CheckpointInfo
    from ..data.open import Stream
    from ..interfaces.configured import BaseTrainer


EVAL_MORE = """\
The model and the data are built from the config and the code that the run directory contains, so the run must have been
started from a run file. With --data KEY the losses on that data set are computed. Without it, the evaluation callbacks
of the run measure once; a run without such callbacks is evaluated on every data set except `train`. The run itself is
not changed."""
EVAL_EXAMPLE = """\
eval
eval digits --data test --checkpoint newest
eval runs/digits/20260102T030405-a1b2c3 --json"""
PREDICT_MORE = """\
The model and the data are built from the config and the code that the run directory contains, so the run must have been
started from a run file. Outputs are written for every sample of the data set, in its order. The name of FILE chooses
the format:

  .safetensors  tensors by name: `output`; for a dict its keys; for a tuple
                `output.0`, `output.1` and so on
  .npy          NumPy, for a model with one output
  .npz          NumPy, for a model with several outputs
  .json         lists of numbers; also for outputs that are not tensors"""
PREDICT_EXAMPLE = """\
predict --data test --output predictions.safetensors
predict digits --data test --checkpoint best -o digits.npy"""


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add both commands."""
    add_eval(parsers, common)
    add_predict(parsers, common)


def add_eval(parsers: Any, common: argparse.ArgumentParser) -> None:
    what = "Evaluate the model of a run that a run file started."
    parser = add_command(
        parsers, common, "eval", run=eval_command, what=what, more=EVAL_MORE, example=EVAL_EXAMPLE
    )
    add_run(parser)
    parser.add_argument("--data", metavar="KEY", help="a data set of the run file, such as test")
    add_checkpoint(parser)
    parser.add_argument(
        "--json", action="store_true", help="print run, checkpoint and metrics as JSON"
    )


def eval_command(options: argparse.Namespace) -> int:
    from ..interfaces.configured import Experiment
    from .exits import explained

    run = find_run(options.name, options.root)
    require_config(run, *lines_in_python(run, "evaluate"))
    checkpoint = pick_checkpoint(run, options.checkpoint)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        metrics = experiment.evaluate(options.data, checkpoint=checkpoint.path)
    if not metrics:
        raise ConfigurationError(
            f"{run.path} has no evaluation callbacks and no data set except `train`: name a data "
            "set with --data KEY."
        )
    _print(run, checkpoint, metrics, options)
    return OK


def _print(
    run: RunView, checkpoint: CheckpointInfo, metrics: dict[str, float], options: argparse.Namespace
) -> None:
    from .train import is_first_process

    if not is_first_process():
        return
    if options.json:
        print_json({"run": str(run.path), "checkpoint": str(checkpoint.path), "metrics": metrics})
        return
    print(printable(f"{short_path(run, options.root)}, {checkpoint_name(run, checkpoint)}"))
    print_table(
        ["METRIC", "VALUE"],
        [[name, number_text(value)] for name, value in metrics.items()],
        right="1",
    )


def add_predict(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Write the outputs of a model for a data set to a file."
    parser = add_command(
        parsers,
        common,
        "predict",
        run=predict_command,
        what=what,
        more=PREDICT_MORE,
        example=PREDICT_EXAMPLE,
    )
    add_run(parser)
    parser.add_argument(
        "--data", metavar="KEY", required=True, help="a data set of the run file, such as test"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    add_checkpoint(parser)
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def predict_command(options: argparse.Namespace) -> int:
    from ..interfaces.configured import Experiment
    from .exits import explained
    from .predictions import joined, write_predictions
    from .train import is_first_process

    output = _destination(Path(options.output), options.force)
    run = find_run(options.name, options.root)
    require_config(run, *lines_in_python(run, "predict"))
    checkpoint = pick_checkpoint(run, options.checkpoint)
    with explained():
        experiment = Experiment.from_run(run.path, progress="silent")
        with _watched(experiment.ready(checkpoint.path)):
            batches = experiment.predict(options.data, checkpoint=checkpoint.path)
    if not is_first_process():
        return OK
    outputs = joined(batches)
    write_predictions(output, outputs)
    shapes = ", ".join(f"{name} {_shape(value)}" for name, value in outputs.items())
    source = checkpoint_name(run, checkpoint)
    size = size_text(output.stat().st_size)
    print(
        printable(f"Outputs of {source} on {options.data}: {shapes}, written to {output} ({size}).")
    )
    return OK


def _destination(output: Path, force: bool) -> Path:
    """Check before anything is computed that the file can be written in the format of its
    suffix."""
    from .predictions import SUFFIXES

    if output.suffix not in SUFFIXES:
        raise ConfigurationError(f"--output {output}: the name must end in {', '.join(SUFFIXES)}.")
    if output.exists() and not force:
        raise ConfigurationError(
            f"{output} exists: choose another --output, or add --force to replace it."
        )
    if not output.absolute().parent.is_dir():
        raise ConfigurationError(f"--output {output}: there is no folder {output.parent}.")
    return output


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return (
        f"of {len(value)} {'batch' if len(value) == 1 else 'batches'}"
        if shape is None
        else " x ".join(map(str, shape))
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
