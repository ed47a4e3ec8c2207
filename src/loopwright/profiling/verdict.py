"""From the parts of a profile to sentences: what stands out, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from .clock import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINTS,
    COMMUNICATION,
    DATA,
    EVALUATION,
    FORWARD,
    LOGGING,
    OF_A_STEP,
    OPTIMIZER,
    OTHER,
    TRAIN_STEP,
    TRANSFER,
)

if TYPE_CHECKING:
    from .report import Report

LIMITS = {  # the share from which on a part stands out
    DATA: 0.25,
    TRANSFER: 0.2,
    TRAIN_STEP: 0.3,
    OPTIMIZER: 0.5,
    COMMUNICATION: 0.25,
    CALLBACKS: 0.15,
    LOGGING: 0.15,
    EVALUATION: 0.4,
    CHECKPOINTS: 0.1,
    OTHER: 0.3,
}
COMPUTING = (FORWARD, BACKWARD, OPTIMIZER)
HEALTHY = 0.8
SHORT_STEP = 1_000_000  # nanoseconds; below, calls of torch cost as much as what they compute
BRIEF = 2_000_000_000  # nanoseconds
_BRIEF = (
    "The measured time is short, so work that a run does only once, at its start and end, has a "
    "larger share than in a long run."
)


def findings(report: Report) -> list[str]:
    """The sentences of a report, the largest share first; never none."""
    if not report.total:
        return ["Nothing was measured."]
    found = [sentence for _, sentence in sorted(_outstanding(report), reverse=True)] or [
        _calm(report)
    ]
    return [*found, *([_BRIEF] if report.total < BRIEF else [])]


def _calm(report: Report) -> str:
    """The sentence of a report in which nothing stands out."""
    computing = sum(report.shares.get(part, 0.0) for part in COMPUTING)
    text = f"{percent(computing)} of the time is forward, backward and optimizer"
    if computing >= HEALTHY:
        return f"Healthy: {text}."
    largest = max(
        (part for part in report.parts if part not in COMPUTING), key=report.parts.__getitem__
    )
    return (
        f"Nothing stands out: {text}; the largest other part is {largest}, "
        f"{percent(report.shares[largest])}."
    )


def _outstanding(report: Report) -> Iterator[tuple[float, str]]:
    """The parts above their limits, by share."""
    is_short = _is_short(report)
    if is_short is not None:
        yield is_short
    for part, share in report.shares.items():
        is_overhead = is_short is not None and part in (TRAIN_STEP, OPTIMIZER, OTHER)
        if share >= LIMITS.get(part, 2.0) and not is_overhead:
            yield share, _SENTENCES[part](report, share)


def _is_short(report: Report) -> tuple[float, str] | None:
    """Whether a step's own work is so short that it is mostly the cost of calling torch."""
    own = sum(
        report.parts.get(part, 0) for part in (*OF_A_STEP, OTHER) if part not in (DATA, TRANSFER)
    )
    if not report.num_steps or own / report.num_steps >= SHORT_STEP:
        return None
    from .report import duration

    share = own / report.total
    if share < 0.5:
        return None
    size = f" of {report.num_samples / report.num_steps:.0f} samples" if report.num_samples else ""
    return share, (
        f"Batches are tiny: a step{size} takes {duration(own / report.num_steps)}, most of which "
        "is the overhead of calling Python and torch, not arithmetic: try a larger batch, or "
        "compile the model (Runtime(compile='model'))."
    )


def _data(report: Report, share: float) -> str:
    return f"{percent(share)} of the time is waiting for data: {_more_workers(report, share)}."


def _more_workers(report: Report, share: float) -> str:
    """What to do about data: as many workers as would keep up, if there are cores for them."""
    cores = report.num_cores
    workers = report.num_workers or 0
    busy = max(1.0 - share, 0.01)
    needed = ceil(workers / busy) if workers else ceil(share / busy)
    cheaper = "make the data set's __getitem__ cheaper (decode once, cache, smaller files)"
    if cores is not None and (cores == 1 or workers >= cores):
        return (
            f"{f'{workers} workers' if workers else 'this process'} on {_cores(cores)} cannot "
            f"go faster: {cheaper}"
        )
    wanted = (
        max(needed, workers + 1) if cores is None else max(min(max(needed, workers + 1), cores), 1)
    )
    how = "try" if report.num_workers is not None else "pass a DataLoader with"
    return f"{how} num_workers={wanted}" + (f", and {cheaper}" if needed > wanted else "")


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def _transfer(report: Report, share: float) -> str:
    if report.device.startswith("cpu"):
        return (
            f"{percent(share)} of the time is `prepare_batch`. On the CPU there is nothing to "
            "move, so this is your own code: do this work in the data set, where workers can do "
            "it in parallel."
        )
    return (
        f"{percent(share)} of the time is moving batches to {report.device}: use a DataLoader "
        "with pin_memory=True, and send less data (integers instead of floats, images before "
        "they are scaled)."
    )


def _train_step(report: Report, share: float) -> str:
    return (
        f"{percent(share)} of the time is code of the training step outside of the models: "
        "losses, metrics, reading numbers (`.item()`), printing. If a value is not needed in "
        "every step, compute it in `on_log` or in the evaluation."
    )


def _optimizer(report: Report, share: float) -> str:
    return (
        f"{percent(share)} of the time is the optimizer: use its fused=True, or update less often "
        "with larger batches (`accumulate`)."
    )


def _communication(report: Report, share: float) -> str:
    return (
        f"{percent(share)} of the time is waiting for the other processes: compute more between "
        "two updates (`accumulate`, larger batches), and check whether one process is slower "
        "than the others."
    )


def _callbacks(report: Report, share: float) -> str:
    name, spent = next(iter(report.details(CALLBACKS).items()), ("?", 0))
    event = next(iter(report.events_of(name)), "")
    where = f" in `{event}`" if event else ""
    if spent / report.total < share / 2:
        return (
            f"Callbacks take {percent(share)} of the time, {name} most of all "
            f"({percent(spent / report.total)}): call them less often, or remove some."
        )
    return (
        f"Callback {name} takes {percent(spent / report.total)} of the time{where}: do it less "
        "often (every n updates, or in `on_log` or `on_epoch_end`)."
    )


def _logging(report: Report, share: float) -> str:
    return (
        f"Logging takes {percent(share)} of the time{_most(report, LOGGING)}: log fewer "
        "values, or less often."
    )


def _evaluation(report: Report, share: float) -> str:
    inside = report.details(EVALUATION)
    part, spent = next(iter(inside.items()), (OTHER, 0))
    more = ""
    if part == DATA and spent >= 0.5 * report.parts[EVALUATION]:
        more = (
            f", {percent(spent / report.parts[EVALUATION])} of it waiting for data (num_workers=)"
        )
    return (
        f"Evaluation takes {percent(share)} of the run{more}: evaluate less often (longer "
        "epochs), on fewer samples, or in larger batches."
    )


def _checkpoints(report: Report, share: float) -> str:
    how = (
        " (Checkpoints(every_epochs=None, every_minutes=10))"
        if "Checkpoints" in report.details(CHECKPOINTS)
        else ""
    )
    most = _most(report, CHECKPOINTS)
    return (
        f"Checkpoints block training for {percent(share)} of the time{most}: save less often{how}."
    )


def _other(report: Report, share: float) -> str:
    return (
        f"{percent(share)} of the time is in none of these parts: your own code between the "
        "steps, or your own loop that reads data from a loader. Profile(trace=True) writes a "
        "trace that shows it."
    )


def _most(report: Report, part: str) -> str:
    name = next(iter(report.details(part)), None)
    return "" if name is None else f", most of it in {name}"


_SENTENCES = {
    DATA: _data,
    TRANSFER: _transfer,
    TRAIN_STEP: _train_step,
    OPTIMIZER: _optimizer,
    COMMUNICATION: _communication,
    CALLBACKS: _callbacks,
    LOGGING: _logging,
    EVALUATION: _evaluation,
    CHECKPOINTS: _checkpoints,
    OTHER: _other,
}


def percent(share: float) -> str:
    """A share as a whole number of percent."""
    return f"{100 * share:.0f} %"
