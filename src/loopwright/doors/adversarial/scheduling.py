"""Values that change from epoch to epoch: the weights of losses, and learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import ConfigurationError
from .config import LearningRate

ScheduleFunction: TypeAlias = "Callable[[Schedule, int], float]"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`initial_value` up to `start_epoch`, `target_value` from `end_epoch` on, and a way between them.

    Epochs are counted from 1, as in `Trainer.current_epoch`. `schedule` is "linear", "cosine", "exponential", "step"
    (all at once, half way), or a function of the schedule and the epoch. The value is a pure function of the epoch,
    so there is nothing to save and nothing that two losses could share by mistake.
    """

    schedule: str | ScheduleFunction = "linear"
    start_epoch: int = 0
    end_epoch: int = 0
    initial_value: float = 1.0
    target_value: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str) and self.schedule not in CURVES:
            raise ConfigurationError(f"Schedule({self.schedule!r}): use one of {', '.join(CURVES)}, or a function.")
        if self.end_epoch < self.start_epoch:
            raise ConfigurationError(
                f"Schedule: end_epoch={self.end_epoch} is before start_epoch={self.start_epoch}; exchange them."
            )
        if self.schedule == "exponential" and not self.initial_value * self.target_value > 0:
            raise ConfigurationError("Schedule('exponential') needs values of one sign, none of them 0.")

    def value(self, epoch: int) -> float:
        if callable(self.schedule):
            return float(self.schedule(self, epoch))
        if epoch <= self.start_epoch:
            return self.initial_value
        if epoch >= self.end_epoch:
            return self.target_value
        done = (epoch - self.start_epoch) / (self.end_epoch - self.start_epoch)
        return CURVES[self.schedule](self.initial_value, self.target_value, done)


CURVES: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda first, last, done: first + (last - first) * done,
    "cosine": lambda first, last, done: last + (first - last) * (1 + math.cos(math.pi * done)) / 2,
    "exponential": lambda first, last, done: first * (last / first) ** done,
    "step": lambda first, last, done: first if done < 0.5 else last,
}


class ScheduledRate(LRScheduler):
    """Sets an optimizer's learning rate to the schedule's value for the epoch that comes next.

    Stepped once an epoch; what it saves is how many there were, so it goes on where it stopped.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        self.schedule = schedule
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Any]:
        return [self.schedule.value(self.last_epoch + 1) for _ in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, also where a loss scaler left out every step of this one, which torch warns about."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        super().step(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "schedule"}


def rate_schedule(settings: LearningRate) -> Schedule:
    """Constant, then linear; the epoch after the last one would have the target, so that no epoch trains with 0."""
    return Schedule(
        "linear",
        start_epoch=settings.epochs,
        end_epoch=settings.epochs + settings.epochs_decay + 1,
        initial_value=settings.initial,
        target_value=settings.target,
    )
