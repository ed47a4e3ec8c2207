"""Schedulers that are stepped after every optimizer update, and the trainer for those of timm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ...errors import ConfigurationError
from ...schedules import warmup_cosine, warmup_stable_decay
from .placeholders import TrainerPlaceholderValues
from .trainer import Trainer


class SchedulerBase(ABC):
    """Sets a field of every parameter group, from the number of updates that it is told."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        for group in optimizer.param_groups:
            if param_group_field not in group:
                raise ConfigurationError(
                    f"{type(self).__name__} schedules {param_group_field!r}, which this optimizer does not have; "
                    f"there is: {', '.join(key for key in group if key != 'params')}."
                )
            group.setdefault(f"initial_{param_group_field}", group[param_group_field])

    @property
    def base_values(self) -> list[Any]:
        """The value that each parameter group began with, before any scheduler changed it."""
        return [group[f"initial_{self.param_group_field}"] for group in self.optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> Any:
        """The values after so many updates: one for all groups, one for each, or None to leave them as they are."""

    def step_update(self, num_updates: int) -> None:
        """Set the values that belong to this number of updates."""
        values = self.get_updated_values(num_updates)
        if values is not None:
            self.update_param_groups(values)

    def update_param_groups(self, values: Any) -> None:
        groups = self.optimizer.param_groups
        listed = list(values) if isinstance(values, (list, tuple)) else [values] * len(groups)
        for group, value in zip(groups, listed, strict=True):
            group[self.param_group_field] = value

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        vars(self).update(state_dict)


class StatefulSchedulerBase(SchedulerBase):
    """Counts the updates itself: `step()` once after each of them."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = 0

    def step(self) -> None:
        self._num_updates += 1
        self.step_update(self._num_updates)


class CosineLrScheduler(StatefulSchedulerBase):
    """Linear warm-up, half a cosine down to a minimum, and a cool-down at the minimum.

    `total_num_epochs` includes warm-up and cool-down, which may be parts of epochs. The ratios, where given, are
    minimum and first learning rate as parts of each group's own, and take the place of `lr_min` and
    `warmup_starting_lr`.
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
                f"CosineLrScheduler: {num_warmup_epochs} epochs of warm-up and {num_cooldown_epochs} of cool-down are "
                f"more than the {total_num_epochs} there are."
            )
        self.k_decay = k_decay
        self.lr_min, self.min_lr_ratio = lr_min, min_lr_ratio
        self.warmup_starting_lr, self.warmup_starting_lr_ratio = warmup_starting_lr, warmup_starting_lr_ratio
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: Any = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: Any = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        **options: Any,
    ) -> Callable[[Optimizer], CosineLrScheduler]:
        """For `train(create_scheduler_fn=...)`: over the whole run, whatever its length turns out to be."""
        return partial(
            cls, total_num_epochs=total_num_epochs, num_update_steps_per_epoch=num_update_steps_per_epoch, **options
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


class WSDLrScheduler(StatefulSchedulerBase):
    """Warm-up, a long stable phase, and a quick decay at the end.

    With `num_checkpoints` above 1 the learning rate also decays before earlier points, each at half the updates of
    the next, and is back at its peak after them: models saved there are as good as those of a shorter run. A run that
    continues from one does not warm up.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        num_epochs: int | None = None,
        num_update_steps_per_epoch: int | None = None,
        total_steps: int | None = None,
        num_warmup_steps: int = 0,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = 1e-6,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> None:
        super().__init__(optimizer)
        if total_steps is None:
            if num_epochs is None or num_update_steps_per_epoch is None:
                raise ConfigurationError(
                    "WSDLrScheduler: pass `total_steps`, or `num_epochs` and `num_update_steps_per_epoch`."
                )
            total_steps = num_epochs * num_update_steps_per_epoch
        if num_checkpoints < 1 or not 0 < decay_phase_ratio <= 1 or lr_min <= 0:
            raise ConfigurationError(
                f"WSDLrScheduler(num_checkpoints={num_checkpoints}, decay_phase_ratio={decay_phase_ratio}, "
                f"lr_min={lr_min}): use at least 1 checkpoint, a ratio up to 1, and a minimum above 0."
            )
        self.ends = checkpoint_steps(total_steps, num_checkpoints)
        self.warmup = 0 if is_continuation_from_checkpoint else num_warmup_steps
        self.decay_ratio, self.lr_min, self.warmup_starting_lr = decay_phase_ratio, lr_min, warmup_starting_lr
        self.is_inverse = use_inverse_sqrt_decay
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        num_epochs: Any = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: Any = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        **options: Any,
    ) -> Callable[[Optimizer], WSDLrScheduler]:
        """For `train(create_scheduler_fn=...)`: over the whole run, whatever its length turns out to be."""
        return partial(cls, num_epochs=num_epochs, num_update_steps_per_epoch=num_update_steps_per_epoch, **options)

    def get_updated_values(self, num_updates: int) -> list[float]:
        return [
            warmup_stable_decay(
                num_updates,
                self.ends,
                peak=peak,
                floor=self.lr_min,
                warmup=self.warmup,
                start=self.warmup_starting_lr,
                decay_ratio=self.decay_ratio,
                shape="inverse" if self.is_inverse else "sqrt",
            )
            for peak in self.base_values
        ]


class TrainerWithTimmScheduler(Trainer):
    """A trainer for timm's schedulers: told the number of updates after each one, and of epochs after each of those."""

    num_updates: int = 0

    def scheduler_step(self) -> None:
        self.num_updates = self._core.progress.update + 1
        if self.scheduler is not None:
            self.scheduler.step_update(num_updates=self.num_updates)

    def training_run_epoch_end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step(self.run_history.current_epoch)


def checkpoint_steps(total: int, num_checkpoints: int) -> Sequence[int]:
    """Where the decays end: the last at the end of training, each other one at half of the next."""
    return [total // 2**power for power in reversed(range(num_checkpoints))]


def _start(peak: float, value: float, ratio: float | None) -> float:
    return value if ratio is None else peak * ratio
