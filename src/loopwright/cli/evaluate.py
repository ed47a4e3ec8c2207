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
