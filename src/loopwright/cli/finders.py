"""`loopwright lr-find CONFIG` and `loopwright batch-size-find CONFIG`: find a learning rate or
batch size for a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..metrics.progress import counted
from .arguments import add_command, add_config
from .exits import FOUND, OK
from .output import number_text, print_json, printable, size_text

if TYPE_CHECKING:
    from ..interfaces.configured.engine import Engine
    from ..tuning import BatchSizeScan, LearningRateScan, Trial

RATES = """\
Trains for --updates updates while the learning rate grows exponentially from --low to --high, or until the loss
explodes. The suggestion is the rate at which the smoothed loss falls fastest. No run directory is written.
Exit code 1: the loss never fell, so there is no suggestion."""
RATES_EXAMPLE = """\
lr-find run.yaml
lr-find run.yaml model.width=64 --low 1e-6 --high 10 --updates 200 --plot lr.png"""
SIZES = """\
Trains a few updates with batches of 1, 2, 4, ... samples, until memory runs out, --max is reached or one batch holds
the whole data set; bisection then finds the largest size that fits. The suggestion is the smallest size that is about
as fast as the fastest. On the CPU, sizes that would need more than 80 % of the free memory, or more than --memory, are
skipped. No run directory is written.
Exit code 1: not even the smallest size fits."""
SIZES_EXAMPLE = """\
batch-size-find run.yaml
batch-size-find run.yaml --max 512 --json"""
MAX_ROWS = 20
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add both commands."""
    what = "Suggest a learning rate."
    rates = add_command(
        parsers, common, "lr-find", run=lr_command, what=what, more=RATES, example=RATES_EXAMPLE
    )
    add_config(rates)
    rates.add_argument(
        "--low", metavar="RATE", type=float, default=1e-7, help="the first rate (default: 1e-7)"
    )
    rates.add_argument(
        "--high", metavar="RATE", type=float, default=1.0, help="the last rate (default: 1)"
    )
    rates.add_argument(
        "--updates",
        metavar="N",
        type=int,
        default=100,
        help="the number of rates to try (default: 100)",
    )
    rates.add_argument(
        "--optimizer", metavar="NAME", help="the optimizer to vary, if there are several"
    )
    rates.add_argument(
        "--plot", metavar="FILE", help="draw the curve to this file (.png, .svg, .pdf)"
    )
    rates.add_argument(
        "--json", action="store_true", help="print all rates, losses and the suggestion as JSON"
    )
    what = "Suggest a batch size: the largest that fits, and a fast one."
    sizes = add_command(
        parsers,
        common,
        "batch-size-find",
        run=batch_size_command,
        what=what,
        more=SIZES,
        example=SIZES_EXAMPLE,
    )
    add_config(sizes)
    sizes.add_argument(
        "--start", metavar="N", type=int, default=1, help="the smallest size (default: 1)"
    )
    sizes.add_argument(
        "--max", metavar="N", type=int, default=4096, help="the largest size (default: 4096)"
    )
    sizes.add_argument(
        "--updates", metavar="N", type=int, default=4, help="updates per size (default: 4)"
    )
    sizes.add_argument(
        "--memory",
        metavar="BYTES",
        type=parse_bytes,
        help="the memory that a step may use, such as 800M or 4G",
    )
    sizes.add_argument(
        "--json", action="store_true", help="print all sizes and the suggestion as JSON"
    )


def parse_bytes(text: str) -> int:
    """800M as 800000000."""
    factor = SUFFIXES.get(text[-1:], 1.0)
    try:
        return int(float(text[:-1] if text[-1:] in SUFFIXES else text) * factor)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes: write 800M or 4G, for example"
        ) from None


@contextmanager
def built(options: argparse.Namespace) -> Iterator[Engine]:
    """Build the trainer of a config, without a run directory."""
    from ..config import beside
    from ..interfaces.configured.experiment import Experiment
    from .exits import explained
    from .train import load_single

    config = load_single(options.config, options.overrides, options.command)
    experiment = Experiment.from_config(config, progress="silent")
    with explained(), beside(config.folder):
        experiment.build()
        assert experiment.trainer is not None
        yield experiment.trainer.engine


def lr_command(options: argparse.Namespace) -> int:
    from ..tuning import find_learning_rate

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
    from .output import print_fitted

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
    from ..tuning import find_batch_size

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
    from .output import print_fitted

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
    memory = "-" if trial.memory is None else size_text(trial.memory)
    return [str(trial.size), "yes" if trial.fits else "no", speed, memory, trial.reason or ""]
