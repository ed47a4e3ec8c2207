"""Values that change from epoch to epoch: the weights of losses, and learning rates."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..._torch_compat import mark_stepped
from ...errors import ConfigurationError
from ...text import nearest
from .config import LearningRate

logger = logging.getLogger("loopwright")

ScheduleFunction: TypeAlias = "Callable[..., float]"
NEVER = 1_000_000_000
EPSILON = 1e-9  # in the place of a 0 that an exponential curve comes from or goes to


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value that goes from `initial_value` at `start_epoch` to `target_value` at `end_epoch`.

    Epochs are counted from 1, as in `Trainer.current_epoch`. `schedule` is "linear", "cosine",
    "exponential", "step" (all at once, half way), or a function of the schedule and the epoch. The
    value is a pure function of the epoch, so there is nothing to save and nothing that two losses
    could share by mistake. Without an `end_epoch` the target is never reached.
    """

    schedule: str | ScheduleFunction = "linear"
    start_epoch: int = 0
    end_epoch: int = NEVER
    initial_value: float = 1.0
    target_value: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.schedule) and self.schedule not in CURVES:
            raise ConfigurationError(
                "unknown-schedule",
                f"Schedule({self.schedule!r}) is neither a curve nor a function of the schedule "
                f"and the epoch; {nearest(self.schedule, CURVES)}",
            )
        if self.end_epoch < self.start_epoch:
            raise ConfigurationError(
                "schedule-ends-early",
                f"Schedule: end_epoch={self.end_epoch} is before start_epoch={self.start_epoch}.",
            )
        if self.schedule == "exponential" and self.initial_value * self.target_value < 0:
            raise ConfigurationError(
                "exponential-through-zero",
                f"Schedule('exponential') goes from {self.initial_value} to {self.target_value}, "
                "but an exponential curve cannot cross zero: use 'linear'.",
            )
        if (
            self.end_epoch == NEVER
            and not callable(self.schedule)
            and self.initial_value != self.target_value
        ):
            logger.warning(
                "Schedule(%r) has no end_epoch: the value stays %s and never reaches %s. Set the "
                "epoch in which to reach it, as in end_epoch=100.",
                *(self.schedule, self.initial_value, self.target_value),
            )

    def value(self, epoch: int, **weight_kwargs: Any) -> float:
        """Return the value in an epoch; `weight_kwargs` are keywords for a schedule that is a
        function."""
        if callable(self.schedule):
            return float(self.schedule(self, epoch, **weight_kwargs))
        if epoch <= self.start_epoch:
            return self.initial_value
        if epoch >= self.end_epoch:
            return self.target_value
        done = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        return float(
            CURVES[self.schedule](self.initial_value, self.target_value, done, **weight_kwargs)
        )


def _exponential(first: float, last: float, done: float, epsilon: float = EPSILON) -> float:
    """A constant factor from epoch to epoch; a 0 at one end is a very small number on the way."""
    sign = math.copysign(1.0, first or last)
    first = first or sign * epsilon
    last = last or sign * epsilon
    return first * math.pow(last / first, done)


CURVES: dict[str, Callable[..., float]] = {
    "linear": lambda first, last, done: first + (last - first) * done,
    "cosine": lambda first, last, done: last + (first - last) * (1 + math.cos(math.pi * done)) / 2,
    "exponential": _exponential,
    "step": lambda first, last, done: first if done < 0.5 else last,
}


class Scheduler:
    """A schedule as a factor of its largest value, for torch's `LambdaLR`, which counts epochs from
    0."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.max_value = max(schedule.initial_value, schedule.target_value)

    def eval_schedule(self, timestep: int) -> float:
        """Return the factor in an epoch, from 0; 1 is the largest."""
        return self.schedule.value(timestep + 1) / self.max_value if self.max_value else 0.0


class ScheduledRate(LRScheduler):
    """Sets an optimizer's learning rate to the schedule's value for the epoch that comes next.

    Stepped once an epoch; what it saves is how many there were, so it goes on where it stopped.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        self.schedule = schedule
        self._is_stepping = False
        self._old_lr = self._new_lr = optimizer.param_groups[0]["lr"]
        super().__init__(optimizer)
        self._old_lr = self._new_lr

    def rates(self) -> list[float]:
        """Return the learning rate of each group in the next epoch."""
        return [self.schedule.value(self.last_epoch + 1) for _ in self.optimizer.param_groups]

    def get_lr(self) -> Any:
        """Return (the rate of the last epoch, that of the next one)."""
        return self.rates() if self._is_stepping else (self._old_lr, self._new_lr)

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch."""
        mark_stepped(self.optimizer)
        self._is_stepping = True
        super().step(epoch)
        self._is_stepping = False
        self._old_lr = self._new_lr
        self._new_lr = self.optimizer.param_groups[0]["lr"]

    def go_to(self, epoch: int) -> None:
        """Set the rates of the epoch after this number of epochs."""
        self.last_epoch = epoch - 1
        self.step()

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key not in OWN_STATE}


OWN_STATE = ("schedule", "scheduler", "_is_stepping")


class TorchScheduler(ScheduledRate):
    """Multiplies an optimizer's learning rates by a schedule, as a factor of its largest value."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule | None = None) -> None:
        self.scheduler = Scheduler(Schedule() if schedule is None else schedule)
        super().__init__(optimizer, self.scheduler.schedule)

    def rates(self) -> list[float]:
        factor = self.scheduler.eval_schedule(self.last_epoch)
        return [float(rate) * factor for rate in self.base_lrs]


def rate_schedule(settings: LearningRate) -> Schedule:
    """Constant, then linear; the epoch after the last one would have the target, so that no epoch
    trains with 0."""
    return Schedule(
        "linear",
        start_epoch=settings.epochs,
        end_epoch=settings.epochs + settings.epochs_decay + 1,
        initial_value=settings.initial,
        target_value=settings.target,
    )
