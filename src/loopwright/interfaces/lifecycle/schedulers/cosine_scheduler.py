"""Half a cosine over a run, with a warm-up before it and a cool-down after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ....errors import ConfigurationError
from ....schedules import warmup_cosine
from ..placeholders import TrainerPlaceholderValues
from .scheduler_base import StatefulSchedulerBase


class CosineLrScheduler(StatefulSchedulerBase):
    """Linear warm-up, half a cosine down to a minimum, and a cool-down at the minimum.

    `total_num_epochs` includes warm-up and cool-down, which may be parts of epochs. The ratios,
    where given, are minimum and first learning rate as parts of each group's own, and take the
    place of `lr_min` and `warmup_starting_lr`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_epochs: int,
        num_update_steps_per_epoch: int,
        k_decay: float = 1.0,
        lr_min: float = 1e-6,
        min_lr_ratio: float | None = None,
        num_warmup_epochs: float = 0,
        warmup_starting_lr: float = 1e-6,
        warmup_starting_lr_ratio: float | None = None,
        num_cooldown_epochs: float = 0,
    ) -> None:
        super().__init__(optimizer)
        self.total = total_num_epochs * num_update_steps_per_epoch
        self.warmup = round(num_warmup_epochs * num_update_steps_per_epoch)
        self.cooldown = round(num_cooldown_epochs * num_update_steps_per_epoch)
        if self.warmup + self.cooldown > self.total:
            raise ConfigurationError(
                f"CosineLrScheduler: {num_warmup_epochs} epochs of warm-up and "
                f"{num_cooldown_epochs} of cool-down are more than the {total_num_epochs} epochs "
                "of the run."
            )
        self.k_decay = k_decay
        self.lr_min = lr_min
        self.min_lr_ratio = min_lr_ratio
        self.warmup_starting_lr = warmup_starting_lr
        self.warmup_starting_lr_ratio = warmup_starting_lr_ratio
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: Any = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: Any = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        **options: Any,
    ) -> Callable[[Optimizer], CosineLrScheduler]:
        """For `train(create_scheduler_fn=...)`: over the whole run, whatever its length turns out
        to be."""
        return partial(
            cls,
            total_num_epochs=total_num_epochs,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            **options,
        )

    def get_updated_values(self, num_updates: int) -> list[float]:
        return [
            warmup_cosine(
                num_updates,
                self.total,
                peak=peak,
                floor=self.lr_min if self.min_lr_ratio is None else peak * self.min_lr_ratio,
                warmup=self.warmup,
                start=_start(peak, self.warmup_starting_lr, self.warmup_starting_lr_ratio),
                cooldown=self.cooldown,
                k_decay=self.k_decay,
            )
            for peak in self.base_values
        ]


def _start(peak: float, value: float, ratio: float | None) -> float:
    return value if ratio is None else peak * ratio
