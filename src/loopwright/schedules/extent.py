"""How long a run is on its clock, and which part of it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..progress import Limits, Progress
    from ..trainer import Trainer

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
    progress, until = trainer.progress, trainer.until
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
    stream = trainer.train_stream
    batches, samples = (None, None) if stream is None else (stream.num_batches, stream.num_samples)
    return {"epoch": 1, "update": -(-(batches or 0) // trainer.accumulate), "sample": samples or 0}


def done_of(trainer: Trainer) -> float | None:
    """The part of the call under way that is done, from 0 to 1, by the limit that is nearest; None without any."""
    progress, until = trainer.progress, trainer.until
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
    stream = trainer.train_stream
    if stream is None:
        return 0.0
    if stream.num_samples:
        return min(progress.epoch_sample / stream.num_samples, 1.0)
    return min(progress.epoch_step / stream.num_batches, 1.0) if stream.num_batches else 0.0


def is_limited(until: Limits) -> bool:
    """Whether the end is known on the run's own clock, and not only in seconds."""
    return (until.epochs, until.updates, until.samples) != (None, None, None)
