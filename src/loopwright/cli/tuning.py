"""`loopwright lr-find`, `batch-size-find` and `tune`: find a learning rate, a batch size or faster
settings for a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..config import beside
from ..interfaces.configured.core import ConfiguredCore
from ..interfaces.configured.experiment import Experiment
from ..interfaces.configured.trainer import BaseTrainerConfig
from ..text import counted, size
from ..tuning import BatchSizeScan, LearningRateScan, find_batch_size, find_learning_rate
from ..tuning.tune import Tuner
from .output import FOUND, INTERRUPTED, OK, explained, number_text, print_fitted, print_json, say
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
    if options.json:
        print_json(scan.to_dict())
    else:
        _print_rates(scan)
    return FOUND if scan.suggestion is None else OK


def _print_rates(scan: LearningRateScan) -> None:
    count = len(scan.rates)
    every = -(-count // MAX_ROWS)
    points = list(zip(scan.rates, scan.losses, scan.smoothed, strict=True))[::every]
    rows = [[f"{rate:.3g}", *map(number_text, losses)] for rate, *losses in points]
    print_fitted(["RATE", "LOSS", "SMOOTHED"], rows, right="012")
    say(f"Stopped after {counted(count, 'update')}: {scan.reason}.")
    if scan.suggestion is None:
        print("The loss never fell, so there is no suggestion: try a larger --high.")
        return
    print(f"Suggestion: {scan.suggestion:.3g}, where the loss falls fastest.")


def batch_size_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        scan = find_batch_size(
            engine,
            engine.dataset("train"),
            start=options.start,
            max_size=options.max,
        )
    if options.json:
        print_json(scan.to_dict())
    else:
        _print_sizes(scan)
    return FOUND if scan.largest is None else OK


def _print_sizes(scan: BatchSizeScan) -> None:
    rows = []
    for trial in sorted(scan.trials, key=lambda trial: trial.size):
        speed = "-" if trial.samples_per_second is None else f"{trial.samples_per_second:.4g}"
        memory = "-" if trial.memory is None else size(trial.memory)
        fits = "yes" if trial.fits else "no"
        rows.append([str(trial.size), fits, speed, memory, trial.reason or ""])
    print_fitted(["SIZE", "FITS", "SAMPLES/S", "MEMORY", "WHY NOT"], rows, right="023", fold="4")
    if scan.largest is None:
        print("Not even the smallest size fits: use a smaller model or a lower precision.")
        return
    say(f"Largest: {scan.largest} (limited by {scan.bound}).")
    print(
        f"Suggestion: {scan.suggestion}, about as fast as the fastest "
        f"(trainer.max_batch_size={scan.suggestion})."
    )


def tune_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        data, size = _data_of(engine)
        tuner = Tuner(
            engine,
            data,
            batch_size=size,
            seconds=options.seconds,
            only=options.only,
            compile_choices=["model"],  # all that a run file has a setting for
            is_silent=options.json,
        )
        tuning = tuner.run()
        lines = lines_for(tuning.suggestion, options.config, engine.config)
    if options.json:
        print_json(tuning.to_dict() | {"lines": lines})
    else:
        print()
        for line in tuning.summary(lines):
            say(line)
    return OK if tuning.is_complete else INTERRUPTED


def _data_of(engine: ConfiguredCore) -> tuple[Any, int | None]:
    """The training data in a loader that has its collate function, and the batch size of data that
    has no loader."""
    data = engine.training_data()
    if isinstance(data, DataLoader) or not isinstance(data, Dataset):
        return data, None
    if isinstance(data, IterableDataset):
        return data, engine.config.batch_size
    return engine._loader(data, shuffle=True), None


def lines_for(settings: Mapping[str, Any], path: str, config: BaseTrainerConfig) -> list[str]:
    """What to write for some settings: a command with overrides of the run file, and lines of
    code."""
    values: dict[str, Any] = {}
    if "workers" in settings:
        values["num_workers"] = settings["workers"]
    if "batch_size" in settings:
        values["effective_batch_size"] = settings["batch_size"] * config.accumulate
        if config.max_batch_size is not None:
            values["max_batch_size"] = settings["batch_size"]
    if "precision" in settings:
        values["precision"] = settings["precision"]
    if "compile" in settings:
        values["use_torch_compile"] = "false" if settings["compile"] is None else "true"
    lines = []
    if "threads" in settings:
        lines.append(f"export OMP_NUM_THREADS={settings['threads']}")
    if values:
        words = ["loopwright", "train", path]
        for name, value in values.items():
            is_given = name in config.model_fields_set
            words.append(f"{'' if is_given else '+'}trainer.{name}={value}")  # + adds a key
        lines.append(" ".join(words))
    return lines
