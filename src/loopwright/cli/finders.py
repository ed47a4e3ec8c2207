"""`loopwright lr-find CONFIG` and `loopwright batch-size-find CONFIG`: find a learning rate or
batch size for a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import beside
from ..interfaces.configured.core import ConfiguredCore
from ..interfaces.configured.experiment import Experiment
from ..text import counted, size
from ..tuning import BatchSizeScan, LearningRateScan, Trial, find_batch_size, find_learning_rate
from .output import FOUND, OK, explained, number_text, print_fitted, print_json, printable
from .train import load_single

MAX_ROWS = 20


@contextmanager
def built(options: argparse.Namespace) -> Iterator[ConfiguredCore]:
    """Build the trainer of a config, without a run directory."""
    config = load_single(options.config, options.overrides, options.command)
    experiment = Experiment.from_config(config, progress="silent")
    with explained(), beside(config.folder):
        experiment.build()
        assert experiment.trainer is not None
        yield experiment.trainer.engine


def lr_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        scan = find_learning_rate(
            engine,
            engine.training_data(),
            lowest=options.low,
            highest=options.high,
            num_updates=options.updates,
            optimizer=options.optimizer,
        )
    if options.plot is not None:
        scan.plot(Path(options.plot))
    if options.json:
        print_json(scan.to_dict())
    else:
        _print_rates(scan)
    return FOUND if scan.suggestion is None else OK


def _print_rates(scan: LearningRateScan) -> None:
    count = len(scan.rates)
    shown = (
        range(count)
        if count <= MAX_ROWS
        else sorted({number * (count - 1) // (MAX_ROWS - 1) for number in range(20)})
    )
    rows = [
        [f"{scan.rates[n]:.3g}", number_text(scan.losses[n]), number_text(scan.smoothed[n])]
        for n in shown
    ]
    print_fitted(["RATE", "LOSS", "SMOOTHED"], rows, right="012")
    print(printable(f"Stopped after {counted(count, 'update')}: {scan.reason}."))
    if scan.suggestion is None:
        print(
            "The loss never fell, so there is no suggestion: try a larger --high, or look at the "
            "data and the loss."
        )
        return
    print(
        f"Suggestion: {scan.suggestion:.3g}, where the loss falls fastest (halfway down: "
        f"{scan.valley:.3g})."
    )


def batch_size_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        scan = find_batch_size(
            engine,
            engine.dataset("train"),
            start=options.start,
            max_size=options.max,
            num_updates=options.updates,
            memory=options.memory,
        )
    if options.json:
        print_json(scan.to_dict())
    else:
        _print_sizes(scan)
    return FOUND if scan.largest is None else OK


def _print_sizes(scan: BatchSizeScan) -> None:
    rows = [_row(trial) for trial in sorted(scan.trials, key=lambda trial: trial.size)]
    print_fitted(["SIZE", "FITS", "SAMPLES/S", "MEMORY", "WHY NOT"], rows, right="023", fold="4")
    if scan.largest is None:
        print("Not even the smallest size fits: use a smaller model or a lower precision.")
        return
    print(printable(f"Largest: {scan.largest} (limited by {scan.bound})."))
    print(
        f"Suggestion: {scan.suggestion}, about as fast as the fastest "
        f"(trainer.max_batch_size={scan.suggestion})."
    )


def _row(trial: Trial) -> list[str]:
    speed = "-" if trial.samples_per_second is None else f"{trial.samples_per_second:.4g}"
    memory = "-" if trial.memory is None else size(trial.memory)
    return [str(trial.size), "yes" if trial.fits else "no", speed, memory, trial.reason or ""]
