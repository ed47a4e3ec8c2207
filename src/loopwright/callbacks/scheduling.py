"""Callbacks that set learning rates and weight decays by a curve over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..callback import Callback
from ..errors import ConfigurationError
from ..optim.schedules import Curve, Extent
from .progress import done_of

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.progress import Limits


class Scheduled(Callback):
    """Sets one option of an optimizer's parameter groups before every update, from the completed
    fraction of the run.

    The value depends on nothing else, so a resumed run gets the same values without any saved
    state.
    """

    option = ""

    def __init__(self, schedule: Curve, *, optimizer: str | None = None) -> None:
        self.schedule = schedule
        self.optimizer = optimizer
        self._curve: Curve = schedule
        self._groups: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer) -> None:
        if not is_limited(trainer.run.call.limits):
            raise ConfigurationError(
                "curve-needs-length",
                f"{type(self).__name__} needs to know the length of the run: pass `num_epochs`, "
                "`num_updates` or `num_samples`.",
            )
        self._curve = self.schedule.resolve(extent_of(trainer))
        self._groups = self._find(trainer)
        for group in self._groups:
            group.setdefault(f"initial_{self.option}", _copied(group[self.option]))
        self.on_update_end(trainer)

    def on_epoch_start(self, trainer: Trainer) -> None:
        self.on_update_end(trainer)

    def on_rewind(self, trainer: Trainer) -> None:
        # loading replaces an optimizer's groups
        self._groups = self._find(trainer)
        self.on_update_end(trainer)

    def _find(self, trainer: Trainer) -> list[dict[str, Any]]:
        names = list(trainer.optimizers) if self.optimizer is None else [self.optimizer]
        return [group for name in names for group in trainer.optimizers[name].param_groups]

    def on_update_end(self, trainer: Trainer) -> None:
        done = done_of(trainer)
        assert done is not None
        value = self._curve.value(done)
        for group in self._groups:
            wanted = value * group[f"initial_{self.option}"]
            own = group[self.option]
            if isinstance(own, Tensor):  # a compiled optimizer keeps a reference to it
                own.fill_(wanted)
            else:
                group[self.option] = float(wanted)


class ScheduleLearningRate(Scheduled):
    """Sets the learning rate by a curve. `Trainer(scheduler=curve)` is the same.

    Args:
        schedule: The curve, such as `WarmupCosine(warmup=0.05)`; its values are factors of each
            group's initial rate.
        optimizer: The name of one of the trainer's optimizers; all by default.

    >>> from loopwright.callbacks import ScheduleLearningRate
    >>> from loopwright.schedules import WarmupCosine
    >>> callback = ScheduleLearningRate(WarmupCosine(warmup=0.05))
    """

    option = "lr"


class ScheduleWeightDecay(Scheduled):
    """Sets the weight decay by a curve.

    Args:
        schedule: The curve; its values are factors of each group's initial weight decay.
        optimizer: The name of one of the trainer's optimizers; all by default.

    >>> from loopwright.callbacks import ScheduleWeightDecay
    >>> from loopwright.schedules import Cosine
    >>> callback = ScheduleWeightDecay(Cosine(start=1.0, end=10.0))
    """

    option = "weight_decay"


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def extent_of(trainer: Trainer) -> Extent:
    """Return the length of the current `train` call, by the limit that is reached first; time
    limits do not count."""
    progress = trainer.progress
    until = trainer.run.call.limits
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
        known: list[float] = [amounts[unit]] if unit in amounts else []
        if epochs is not None and per_epoch[unit]:
            known.append(epochs * per_epoch[unit])
        return min(known, default=None)

    return Extent(whole("epoch"), whole("update"))


def _per_epoch(trainer: Trainer) -> dict[str, float]:
    """Return the number of updates and samples of an epoch, 0 where unknown."""
    stream = trainer.run.data.train_stream
    batches, samples = (None, None) if stream is None else (stream.num_batches, stream.num_samples)
    return {"epoch": 1, "update": -(-(batches or 0) // trainer.accumulate), "sample": samples or 0}


def is_limited(until: Limits) -> bool:
    """Whether a limit in epochs, updates or samples is set, and not only one in seconds."""
    return (until.epochs, until.updates, until.samples) != (None, None, None)
