"""Curves from the beginning of a run to its end, for learning rates, weight decays and anything else.

`value(done)` takes the part of the run that is done, from 0 to 1. Values are factors of the optimizer's own: with
`lr=0.01`, `Cosine()` goes from 0.01 to 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..metrics.progress import Limits, Progress
    from ..trainer import Trainer


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
    """Linear from `start` to `peak` over `warmup` updates, half a cosine to `floor`, and `cooldown` updates there.

    All of it takes `total` updates; after that the value stays at `floor`. `k_decay` above 1 keeps it high for longer.
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
    """Linear from `start` to `peak`, `peak` for most of the time, and a quick decay to `floor` before each of `ends`.

    A decay takes `decay_ratio` of the updates since the end before it; right after an end the value is `peak` again,
    and after the last one it stays at `floor`. "inverse" lets 1 / value grow evenly, which needs a floor above 0.
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


Unit = Literal["epoch", "update", "sample"]


@dataclass(frozen=True, slots=True)
class Extent:
    """Epochs, updates and samples of a whole `train` call; None where that cannot be known."""

    epochs: float | None = None
    updates: float | None = None
    samples: float | None = None

    def part(self, amount: float, unit: Unit) -> float:
        """How much of the whole so many epochs, updates or samples are."""
        whole = {"epoch": self.epochs, "update": self.updates, "sample": self.samples}[unit]
        if not whole:
            raise ConfigurationError(
                f"A schedule counts {amount:g} {unit}s, and how many of them this run has is not known: limit the run "
                f"in {unit}s, use data with a length, or say it as a part of the run (0.05 for the first twentieth)."
            )
        return amount / whole


def extent_of(trainer: Trainer) -> Extent:
    """The length of the call under way, by the limit that is reached first; a limit of time is none that is known."""
    progress, until = trainer.progress, trainer.run.limits
    limits = {
        "epoch": (until.epochs, progress.call_epoch),
        "update": (until.updates, progress.call_update),
        "sample": (until.samples, progress.call_sample),
    }
    amounts = {unit: limit - begin for unit, (limit, begin) in limits.items() if limit is not None}
    per_epoch = _per_epoch(trainer)
    lengths = [amount / per_epoch[unit] for unit, amount in amounts.items() if per_epoch[unit]]
    epochs = min(lengths, default=None)

    def whole(unit: str) -> float | None:
        if epochs is None:
            return amounts.get(unit)
        amount = amounts.get(unit)
        length = epochs * per_epoch[unit] if per_epoch[unit] else None
        if amount is None or length is None:
            return amount if length is None else length
        return min(amount, length)

    return Extent(whole("epoch"), whole("update"), whole("sample"))


def _per_epoch(trainer: Trainer) -> dict[str, float]:
    """What an epoch consists of, 0 where that is not known."""
    stream = trainer.run.train_stream
    batches, samples = (None, None) if stream is None else (stream.num_batches, stream.num_samples)
    return {"epoch": 1, "update": -(-(batches or 0) // trainer.accumulate), "sample": samples or 0}


def done_of(trainer: Trainer) -> float | None:
    """The part of the call under way that is done, from 0 to 1, by the limit that is nearest; None without any."""
    progress, until = trainer.progress, trainer.run.limits
    parts = []
    if until.epochs is not None:
        inside = _inside_epoch(trainer, progress)
        parts.append(_part(progress.epoch + inside - progress.call_epoch, until.epochs - progress.call_epoch))
    if until.updates is not None:
        parts.append(_part(progress.update - progress.call_update, until.updates - progress.call_update))
    if until.samples is not None:
        parts.append(_part(progress.sample - progress.call_sample, until.samples - progress.call_sample))
    return max(parts) if parts else None


def _part(amount: float, whole: float) -> float:
    return min(amount / whole, 1.0) if whole > 0 else 1.0


def _inside_epoch(trainer: Trainer, progress: Progress) -> float:
    """The part of the epoch that is done; of data without a length, nothing until it ends."""
    stream = trainer.run.train_stream
    if stream is None:
        return 0.0
    if stream.num_samples:
        return min(progress.epoch_sample / stream.num_samples, 1.0)
    return min(progress.epoch_step / stream.num_batches, 1.0) if stream.num_batches else 0.0


def is_limited(until: Limits) -> bool:
    """Whether the end is known on the run's own clock, and not only in seconds."""
    return (until.epochs, until.updates, until.samples) != (None, None, None)


class Curve(ABC):
    """A value for every moment of a run. Override `value`, and `resolve` where updates or epochs are counted."""

    @abstractmethod
    def value(self, done: float) -> float:
        """The value when this part of the run (0 to 1) is done."""

    def resolve(self, extent: Extent) -> Curve:
        """The same curve with everything as parts of a run of this length."""
        return self


@dataclass(frozen=True, slots=True)
class Constant(Curve):
    """The same from beginning to end."""

    constant: float = 1.0

    def value(self, done: float) -> float:
        return self.constant


@dataclass(frozen=True, slots=True)
class Linear(Curve):
    """A straight line."""

    start: float = 1.0
    end: float = 0.0

    def value(self, done: float) -> float:
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True, slots=True)
class Cosine(Curve):
    """Half a cosine: slow at both ends."""

    start: float = 1.0
    end: float = 0.0

    def value(self, done: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True)
class Polynomial(Curve):
    """From start to end with the power of what is left: 1 is a line, more is quick at first."""

    start: float = 1.0
    end: float = 0.0
    power: float = 2.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ConfigurationError(f"Polynomial(power={self.power!r}): use a number above 0.")

    def value(self, done: float) -> float:
        return self.end + (self.start - self.end) * math.pow(1 - done, self.power)


@dataclass(frozen=True, slots=True)
class WarmupCosine(Curve):
    """A line from `start` to `peak` over the warm-up, then half a cosine to `end`.

    The warm-up is a part of the run (0.05 is the first twentieth), or so many epochs, updates or samples.
    """

    warmup: float | None = None
    start: float = 0.0
    peak: float = 1.0
    end: float = 0.0
    warmup_epochs: float | None = None
    warmup_updates: int | None = None
    warmup_samples: int | None = None

    def __post_init__(self) -> None:
        given = [
            v for v in (self.warmup, self.warmup_epochs, self.warmup_updates, self.warmup_samples) if v is not None
        ]
        if len(given) > 1:
            raise ConfigurationError("WarmupCosine: say the length of the warm-up once.")
        if any(v < 0 for v in given) or (self.warmup or 0) > 1:
            raise ConfigurationError(
                f"WarmupCosine(warmup={given[0]!r}): use a part of the run from 0 to 1, or a number of epochs, updates "
                "or samples, 0 or more."
            )

    def resolve(self, extent: Extent) -> Curve:
        if self.warmup_epochs is not None:
            part = extent.part(self.warmup_epochs, "epoch")
        elif self.warmup_updates is not None:
            part = extent.part(self.warmup_updates, "update")
        elif self.warmup_samples is not None:
            part = extent.part(self.warmup_samples, "sample")
        else:
            return self
        return replace(self, warmup=min(part, 1.0), warmup_epochs=None, warmup_updates=None, warmup_samples=None)

    def value(self, done: float) -> float:
        if self.warmup is None and (self.warmup_epochs or self.warmup_updates or self.warmup_samples):
            raise ConfigurationError("WarmupCosine counts its warm-up: `resolve` it for the length of a run first.")
        warmup = self.warmup or 0.0
        if done < warmup:
            return self.start + (self.peak - self.start) * done / warmup
        return Cosine(self.peak, self.end).value((done - warmup) / (1 - warmup) if warmup < 1 else 1.0)


@dataclass(frozen=True, slots=True)
class MultiStep(Curve):
    """Multiplied by `factor` at each of these points: parts of the run, or counted in epochs or updates."""

    factor: float = 0.1
    at: Sequence[float] = ()
    at_epochs: Sequence[float] = ()
    at_updates: Sequence[int] = ()
    start: float = 1.0

    def __post_init__(self) -> None:
        if sum(map(bool, (self.at, self.at_epochs, self.at_updates))) != 1:
            raise ConfigurationError(
                "MultiStep: say the points once: `at` (parts of the run), at_epochs or at_updates."
            )
        if self.at and not all(0 <= point <= 1 for point in self.at):
            raise ConfigurationError(f"MultiStep(at={list(self.at)}): use parts of the run from 0 to 1.")

    def resolve(self, extent: Extent) -> Curve:
        if self.at:
            return self
        points = [(n, "epoch") for n in self.at_epochs] + [(n, "update") for n in self.at_updates]
        return _Steps(self.factor, tuple(extent.part(n, unit) for n, unit in points), self.start)  # type: ignore[arg-type]

    def value(self, done: float) -> float:
        if not self.at:
            raise ConfigurationError("MultiStep counts epochs or updates: `resolve` it for the length of a run first.")
        return _Steps(self.factor, tuple(self.at), self.start).value(done)


@dataclass(frozen=True, slots=True)
class _Steps(Curve):
    """Steps at parts of the run, of which some may lie beyond its end."""

    factor: float
    at: tuple[float, ...]
    start: float

    def value(self, done: float) -> float:
        """With a little room: 0.3 of 10 updates is 3 of them, whatever floating point says."""
        return self.start * self.factor ** sum(done >= point - 1e-12 for point in self.at)


@dataclass(frozen=True, slots=True)
class Sequential(Curve):
    """One curve after another: `ends` says at which part of the run each but the last is over."""

    schedules: Sequence[Curve]
    ends: Sequence[float]

    def __post_init__(self) -> None:
        if not self.schedules or len(self.ends) != len(self.schedules) - 1:
            raise ConfigurationError(
                f"Sequential: {len(self.schedules)} schedules need {max(len(self.schedules) - 1, 0)} ends, where each "
                f"but the last is over; there are {len(self.ends)}."
            )
        if not all(a < b for a, b in pairwise([0.0, *self.ends, 1.0])):
            raise ConfigurationError(f"Sequential(ends={list(self.ends)}): use parts of the run, from 0 to 1 upwards.")

    def resolve(self, extent: Extent) -> Curve:
        """Each of them sees its own part of the run as the whole."""
        bounds = list(pairwise([0.0, *self.ends, 1.0]))
        parts = [
            curve.resolve(Extent(*(None if n is None else n * (b - a) for n in _amounts(extent))))
            for curve, (a, b) in zip(self.schedules, bounds, strict=True)
        ]
        return replace(self, schedules=tuple(parts))

    def value(self, done: float) -> float:
        begin = 0.0
        for curve, end in zip(self.schedules, [*self.ends, 1.0], strict=True):
            if done < end or end == 1.0:
                return curve.value(min((done - begin) / (end - begin), 1.0))
            begin = end
        raise AssertionError("the last one ends at 1")


def _amounts(extent: Extent) -> tuple[float | None, ...]:
    return extent.epochs, extent.updates, extent.samples
