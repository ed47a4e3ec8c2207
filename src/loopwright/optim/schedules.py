"""Schedules as curves over a run, for learning rates, weight decays and other options of
optimizers.

`value(done)` takes the completed fraction of the run, from 0 to 1. Values are factors of the
optimizer's option: with `lr=0.01`, `Cosine()` goes from 0.01 to 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from ..errors import ConfigurationError, check_number

DecayShape = Literal["inverse", "sqrt", "linear"]


def warmup_cosine(
    update: int,
    total: int,
    *,
    peak: float,
    floor: float = 0.0,
    warmup: int = 0,
    start: float = 0.0,
    cooldown: int = 0,
    k_decay: float = 1.0,
) -> float:
    """Return the value of a schedule with linear warm-up and cosine decay at one update.

    Args:
        update: The number of completed updates.
        total: The number of updates of the whole schedule; afterwards the value stays at `floor`.
        peak: The value after the warm-up.
        floor: The value at the end of the decay.
        warmup: The number of updates from `start` to `peak`.
        start: The value at update 0.
        cooldown: The number of updates at `floor` at the end of the schedule.
        k_decay: The exponent of the decay's progress; above 1, the value stays high for longer.

    >>> [round(warmup_cosine(update, 8, peak=1.0, warmup=2), 3) for update in (0, 1, 2, 5, 8)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if update < warmup:
        return start + (peak - start) * update / warmup
    length = total - warmup - cooldown
    done = 1.0 if update - warmup >= length else (update - warmup) / length
    return floor + (peak - floor) * (1 + math.cos(math.pi * done**k_decay)) / 2


def warmup_stable_decay(
    update: int,
    ends: Sequence[int],
    *,
    peak: float,
    floor: float = 0.0,
    warmup: int = 0,
    start: float = 0.0,
    decay_ratio: float = 0.1,
    shape: DecayShape = "inverse",
) -> float:
    """Return the value of a warmup-stable-decay schedule at one update.

    Args:
        update: The number of completed updates.
        ends: The updates at which a decay ends. After each end the value is `peak` again, after the
            last one `floor`.
        peak: The value after the warm-up.
        floor: The value at the end of a decay; above 0 for the shape "inverse".
        warmup: The number of updates from `start` to `peak`.
        start: The value at update 0.
        decay_ratio: The length of a decay as a fraction of the updates since the previous end.
        shape: How the value decays: "inverse" (1 / value grows linearly), "sqrt" or "linear".

    >>> values = [warmup_stable_decay(u, [10, 20], peak=1.0, decay_ratio=0.2, shape="linear") for u in (5, 9, 10, 20)]
    >>> values
    [1.0, 0.5, 1.0, 0.0]
    """
    if update < warmup:
        return start + (peak - start) * update / warmup
    begin = 0
    for end in ends:
        if update < end:
            decay = max(round(decay_ratio * (end - begin)), 1)
            return _decayed(max(update - (end - decay), 0) / decay, peak, floor, shape)
        begin = end
    return floor


def _decayed(done: float, peak: float, floor: float, shape: DecayShape) -> float:
    if shape == "inverse":
        return 1 / (done / floor + (1 - done) / peak)
    remaining = 1 - math.sqrt(done) if shape == "sqrt" else 1 - done
    return floor + (peak - floor) * remaining


Unit = Literal["epoch", "update"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The length of a whole `train` call in epochs and updates.

    Args:
        epochs: Number of epochs, or None if unknown.
        updates: Number of updates, or None if unknown.

    >>> Extent(updates=200).part(10, "update")
    0.05
    """

    epochs: float | None = None
    updates: float | None = None

    def part(self, amount: float, unit: Unit) -> float:
        """Return a number of epochs or updates as a fraction of the whole call."""
        whole = self.epochs if unit == "epoch" else self.updates
        if not whole:
            raise ConfigurationError(
                "curve-length-unknown",
                f"A schedule counts {amount:g} {unit}s, but the number of {unit}s in this run is "
                f"not known: limit the run in {unit}s, use data with a length, or give the length "
                "as a fraction of the run (0.05 for the first twentieth).",
            )
        return amount / whole


class Curve(ABC):
    """A value for every moment of a run: the base class of your own curves.

    Override `value`, and `resolve` if the curve counts updates or epochs. Pass a curve as
    `Trainer(scheduler=)`, or to `loopwright.callbacks.ScheduleLearningRate` and
    `ScheduleWeightDecay`.

    >>> class Halves(Curve):
    ...     def value(self, done):
    ...         return 1.0 if done < 0.5 else 0.5
    >>> Halves().value(0.75)
    0.5
    """

    @abstractmethod
    def value(self, done: float) -> float:
        """Return the value at a completed fraction of the run, from 0 to 1."""

    def resolve(self, extent: Extent) -> Curve:
        """Return the same curve with all numbers of updates and epochs as fractions of a run of this
        length."""
        return self


@dataclass(frozen=True, slots=True)
class Constant(Curve):
    """A constant factor.

    Args:
        constant: The value.

    >>> Constant(0.5).value(0.3)
    0.5
    """

    constant: float = 1.0

    def value(self, done: float) -> float:
        return self.constant


@dataclass(frozen=True, slots=True)
class Linear(Curve):
    """A straight line.

    Args:
        start: The value at the beginning of the run.
        end: The value at its end.

    >>> Linear(start=1.0, end=0.5).value(0.5)
    0.75
    """

    start: float = 1.0
    end: float = 0.0

    def value(self, done: float) -> float:
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True, slots=True)
class Cosine(Curve):
    """Half a cosine: slow at the beginning and at the end.

    Args:
        start: The value at the beginning of the run.
        end: The value at its end.

    >>> Cosine(end=0.1).value(1.0)
    0.1
    """

    start: float = 1.0
    end: float = 0.0

    def value(self, done: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True)
class Polynomial(Curve):
    """Polynomial decay: from start to end with a power of the remaining fraction of the run.

    Args:
        start: The value at the beginning of the run.
        end: The value at its end.
        power: The exponent, above 0; 1 is a line, more decays faster at first.

    >>> Polynomial(power=2.0).value(0.5)
    0.25
    """

    start: float = 1.0
    end: float = 0.0
    power: float = 2.0

    def __post_init__(self) -> None:
        check_number("Polynomial(power", self.power, above=0, is_whole=False)

    def value(self, done: float) -> float:
        return self.end + (self.start - self.end) * math.pow(1 - done, self.power)


@dataclass(frozen=True, slots=True)
class WarmupCosine(Curve):
    """Linear warm-up from `start` to `peak`, then half a cosine to `end`.

    Args:
        warmup: The length of the warm-up as a fraction of the run (0.05 is the first twentieth).
        start: The value at the beginning.
        peak: The value after the warm-up.
        end: The value at the end of the run.
        warmup_epochs: The length of the warm-up in epochs, instead of `warmup`.
        warmup_updates: The length of the warm-up in updates, instead of `warmup`.

    >>> curve = WarmupCosine(warmup_updates=10).resolve(Extent(updates=100))
    >>> curve.value(0.05), curve.value(0.1), curve.value(1.0)
    (0.5, 1.0, 0.0)
    """

    warmup: float | None = None
    start: float = 0.0
    peak: float = 1.0
    end: float = 0.0
    warmup_epochs: float | None = None
    warmup_updates: int | None = None

    def __post_init__(self) -> None:
        lengths = (self.warmup, self.warmup_epochs, self.warmup_updates)
        given = [length for length in lengths if length is not None]
        if len(given) > 1:
            raise ConfigurationError(
                "warmup-twice", "WarmupCosine: set the length of the warm-up only once."
            )
        if any(length < 0 for length in given) or (self.warmup or 0) > 1:
            raise ConfigurationError(
                "warmup-length",
                f"WarmupCosine(warmup={given[0]!r}): use a fraction of the run from 0 to 1, or a "
                "number of epochs or updates, 0 or more.",
            )

    def resolve(self, extent: Extent) -> Curve:
        if self.warmup_epochs is not None:
            part = extent.part(self.warmup_epochs, "epoch")
        elif self.warmup_updates is not None:
            part = extent.part(self.warmup_updates, "update")
        else:
            return self
        return replace(self, warmup=min(part, 1.0), warmup_epochs=None, warmup_updates=None)

    def value(self, done: float) -> float:
        warmup = self.warmup or 0.0
        if done < warmup:
            return self.start + (self.peak - self.start) * done / warmup
        after = (done - warmup) / (1 - warmup) if warmup < 1 else 1.0
        return Cosine(self.peak, self.end).value(after)


@dataclass(frozen=True, slots=True)
class MultiStep(Curve):
    """Steps: the value is multiplied by `factor` at each of the given points.

    Give the points once, by one of `at`, `at_epochs` and `at_updates`.

    Args:
        factor: The factor at each point.
        at: The points as fractions of the run.
        at_epochs: The points as numbers of epochs.
        at_updates: The points as numbers of updates.
        start: The value before the first point.

    >>> [MultiStep(0.5, at=[0.3, 0.6]).value(done) for done in (0.0, 0.3, 0.9)]
    [1.0, 0.5, 0.25]
    """

    factor: float = 0.1
    at: Sequence[float] = ()
    at_epochs: Sequence[float] = ()
    at_updates: Sequence[int] = ()
    start: float = 1.0

    def __post_init__(self) -> None:
        if sum(map(bool, (self.at, self.at_epochs, self.at_updates))) != 1:
            raise ConfigurationError(
                "points-twice",
                "MultiStep: set the points only once: `at` (fractions of the run), at_epochs or "
                "at_updates.",
            )
        if self.at and not all(0 <= point <= 1 for point in self.at):
            raise ConfigurationError(
                "points-of-curve",
                f"MultiStep(at={list(self.at)}): use fractions of the run from 0 to 1.",
            )

    def resolve(self, extent: Extent) -> Curve:
        if self.at:
            return self
        points = [extent.part(number, "epoch") for number in self.at_epochs]
        points += [extent.part(number, "update") for number in self.at_updates]
        inside = [point for point in points if point <= 1]
        if not inside:
            return Constant(self.start)
        return replace(self, at=inside, at_epochs=(), at_updates=())

    def value(self, done: float) -> float:
        # 0.3 of 10 updates is 3 updates, in spite of floating-point rounding
        reached = [point for point in self.at if done >= point - 1e-12]
        return float(self.start * self.factor ** len(reached))


@dataclass(frozen=True, slots=True)
class Sequential(Curve):
    """Several curves, one after another; each sees its own section as a whole run.

    Args:
        schedules: The curves.
        ends: The fraction of the run at which each curve ends, without the last one, which ends
            with the run.

    >>> curve = Sequential([Linear(0.0, 1.0), Cosine()], ends=[0.1])
    >>> curve.value(0.05), curve.value(0.1), curve.value(1.0)
    (0.5, 1.0, 0.0)
    """

    schedules: Sequence[Curve]
    ends: Sequence[float]

    def __post_init__(self) -> None:
        if not self.schedules or len(self.ends) != len(self.schedules) - 1:
            raise ConfigurationError(
                "ends-of-curves",
                f"Sequential: {len(self.schedules)} schedules need "
                f"{max(len(self.schedules) - 1, 0)} ends (one for each schedule except the last), "
                f"but there are {len(self.ends)}.",
            )
        if not all(a < b for a, b in pairwise([0.0, *self.ends, 1.0])):
            raise ConfigurationError(
                "order-of-ends",
                f"Sequential(ends={list(self.ends)}): use fractions of the run from 0 to 1, in "
                "increasing order.",
            )

    def resolve(self, extent: Extent) -> Curve:
        """Resolve each curve for the length of its own section."""
        resolved = []
        for curve, (begin, end) in zip(
            self.schedules, pairwise([0.0, *self.ends, 1.0]), strict=True
        ):
            lengths = [
                None if whole is None else whole * (end - begin)
                for whole in (extent.epochs, extent.updates)
            ]
            resolved.append(curve.resolve(Extent(*lengths)))
        return replace(self, schedules=tuple(resolved))

    def value(self, done: float) -> float:
        begin = 0.0
        for curve, end in zip(self.schedules, [*self.ends, 1.0], strict=True):
            if done < end or end == 1.0:
                return curve.value(min((done - begin) / (end - begin), 1.0))
            begin = end
        raise AssertionError("the last curve ends at 1")
