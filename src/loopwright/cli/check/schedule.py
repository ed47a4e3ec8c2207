"""Checks of schedules and intervals against the length of the run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..._torch_compat import mark_stepped
from ...callbacks.interval import Interval, Periodic, Watching
from ...callbacks.scheduling import Scheduled
from ...optim.build import CurveSchedule, Schedule
from ...schedules import Curve, Extent, MultiStep, WarmupCosine
from .report import ConfigReport, key_of_callback

if TYPE_CHECKING:
    from ...callback import Callback
    from ...interfaces.configured.engine import Engine

POINTS = 101
MAX_SECONDS = 1.0
# of torch's schedulers, in their own steps
LENGTHS = (
    "T_max",
    "total_steps",
    "total_iters",
    "step_size",
)


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a run in epochs, updates and samples; None where it is not known."""

    epochs: float | None
    updates: float | None
    samples: float | None
    batches: int | None  # in an epoch

    @property
    def extent(self) -> Extent:
        return Extent(self.epochs, self.updates, self.samples)

    def of(self, unit: str) -> float | None:
        found: float | None = getattr(self, f"{unit}s")
        return found


def length_of(engine: Engine) -> Length:
    """The length of a run, from the limit in the config and the length of the data."""
    config = engine.config
    stream = engine._open(engine.training_data(), None, shuffle=True)
    batches = stream.num_batches
    samples = stream.num_samples
    stream.close()
    per_epoch = {
        "epochs": 1,
        "updates": -(-(batches or 0) // engine.accumulate),
        "samples": samples or 0,
    }
    unit = next(unit for unit in per_epoch if getattr(config, f"max_{unit}") is not None)
    limit = getattr(config, f"max_{unit}")
    epochs = limit / per_epoch[unit] if per_epoch[unit] else None
    amounts = {
        name: limit if name == unit else epochs * each if epochs is not None and each else None
        for name, each in per_epoch.items()
    }
    if amounts["updates"] is not None:
        # the last one may be of fewer samples
        amounts["updates"] = math.ceil(amounts["updates"] - 1e-9)
    return Length(**amounts, batches=batches)


def check_intervals(report: ConfigReport, callbacks: Sequence[Callback], length: Length) -> None:
    """Check for callbacks whose interval is longer than the run."""
    for number, callback in enumerate(callbacks):
        if not isinstance(callback, Periodic | Watching):
            continue
        interval: Interval = callback.interval
        whole = length.of(interval.unit)
        if whole is None or interval.n <= whole:
            continue
        key = key_of_callback(report.config, callbacks, number)
        message = (
            f"{type(callback).__name__} acts every {interval.n} {interval.unit}s, but the run has "
            f"only {whole:.4g}: it would never act.\n-> Use a smaller "
            f"interval{_smaller(length, interval)}."
        )
        (report.note if key == "trainer" else report.mistake)(key, message)


def _smaller(length: Length, interval: Interval) -> str:
    is_short = interval.unit == "epoch" and length.updates is not None and length.updates >= 1
    return " or every_n_updates" if is_short else ""


def check_curves(report: ConfigReport, engine: Engine, length: Length) -> None:
    """Check the values of all curves from the beginning of the run to its end."""
    callbacks = engine.run.callbacks
    curves: list[tuple[str, Any]] = [
        (key_of_callback(report.config, callbacks, number), callback.schedule)
        for number, callback in enumerate(callbacks)
        if isinstance(callback, Scheduled)
    ]
    schedules = engine.schedules.items()
    curves += [
        (schedule_key(report, name), s.scheduler.curve) for name, s in schedules if is_curve(s)
    ]
    for key, curve in curves:
        with report.collecting(key, "the schedule fails"):
            _check_curve(report, key, curve, length)


def is_curve(schedule: Schedule) -> bool:
    return isinstance(schedule.scheduler, CurveSchedule)


def _check_curve(report: ConfigReport, key: str, curve: Curve, length: Length) -> None:
    if isinstance(curve, WarmupCosine):
        counted = {
            "epoch": curve.warmup_epochs,
            "update": curve.warmup_updates,
            "sample": curve.warmup_samples,
        }
        for unit, amount in counted.items():
            whole = length.of(unit)
            if amount is not None and whole is not None and amount >= whole:
                report.mistake(
                    key,
                    f"the warm-up takes {amount} {unit}s, but the run has only {whole:.4g}: it "
                    "never ends.",
                )
    if isinstance(curve, MultiStep):
        for unit, points in (("epoch", curve.at_epochs), ("update", curve.at_updates)):
            whole = length.of(unit)
            late = [point for point in points if whole is not None and point > whole]
            if late:
                report.mistake(
                    key,
                    f"the schedule changes at {unit} {', '.join(map(str, late))}, but the run has "
                    f"only {whole:.4g}.",
                )
    resolved = curve.resolve(length.extent)
    for point in range(POINTS):
        value = resolved.value(point / (POINTS - 1))
        if not math.isfinite(value) or value < 0:
            report.mistake(key, f"the schedule is {value} after {point}% of the run.")
            return
    report.checked.append("schedule to the end")


def schedule_key(report: ConfigReport, name: str) -> str:
    """The key of a schedule in the config; with several models it is below the name of the
    model."""
    keys = (f"model.{name}.scheduler", "model.scheduler")
    return next((key for key in keys if report.config.get(key) is not None), "scheduler")


def check_schedulers(report: ConfigReport, engine: Engine, length: Length) -> None:
    """Check torch's schedulers: their lengths, and each of their steps to the end of the run."""
    for name, schedule in engine.schedules.items():
        if is_curve(schedule):
            continue
        key = schedule_key(report, name)
        unit = schedule.interval
        whole = length.of(unit)
        if whole is None:
            report.note(
                key,
                f"the number of {unit}s is not known, so the schedule was not followed to its end.",
            )
            continue
        steps = math.floor(whole)
        if steps == 0:
            report.mistake(
                key,
                f"it is stepped after every {unit}, and the run has only {whole:.3g} of one: it "
                "would never be stepped.\n-> Say `every: update`.",
            )
            continue
        _check_length(report, key, schedule, steps)
        _follow(report, key, schedule, steps)


def _check_length(report: ConfigReport, key: str, schedule: Schedule, steps: int) -> None:
    unit = schedule.interval
    scheduler = schedule.scheduler
    name = type(scheduler).__name__
    for option in LENGTHS:
        amount = getattr(scheduler, option, None)
        if isinstance(amount, int | float) and amount > steps:
            report.mistake(
                key,
                f"{name}({option}={amount}) counts {unit}s, but the run has only {steps}: the "
                "period is longer than the run.\n"
                f"-> Use {option}: {steps}, or `every: "
                f"{'update' if unit == 'epoch' else 'epoch'}` if it counts those.",
            )
        elif option == "T_max" and isinstance(amount, int | float) and amount < steps:
            report.note(
                key,
                f"{name}(T_max={amount}) is stepped {steps} times: after {amount} it rises again.",
            )
    milestones = list(getattr(scheduler, "milestones", ()))
    if milestones and min(milestones) > steps:
        report.mistake(
            key,
            f"{name}(milestones={sorted(milestones)}): the run has {steps} {unit}s, before the "
            "first.",
        )


def _follow(report: ConfigReport, key: str, schedule: Schedule, steps: int) -> None:
    """Step a scheduler to the end of the run, for at most MAX_SECONDS."""
    scheduler = schedule.scheduler
    optimizer = schedule.scheduler.optimizer
    mark_stepped(optimizer)
    end = monotonic() + MAX_SECONDS
    for step in range(1, steps + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
        except Exception as error:
            report.failed(key, f"the schedule fails in step {step} of {steps}", error)
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            report.mistake(key, f"the learning rate is {rates} after step {step} of {steps}.")
            return
        if monotonic() > end:
            report.note(
                key, f"the schedule was followed for the first {step} of {steps} steps only."
            )
            return
    report.checked.append("schedule to the end")
