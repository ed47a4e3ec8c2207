"""Schedulers that set a field of every parameter group after each optimizer update, and placeholders
for values of a run that are not known when a scheduler is described."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ...errors import ConfigurationError
from ...schedules import warmup_cosine, warmup_stable_decay
from ...text import nearest
from ...trees import map_leaves

if TYPE_CHECKING:
    from .trainer import Trainer


def _deferred(operation: Callable[..., Any]) -> tuple[Any, Any]:
    """An operator of a placeholder, and its reflection: both wait until the value is known."""

    def method(self: Any, *others: Any) -> Expression:
        return Expression(operation, self, *others)

    def reflected(self: Any, other: Any) -> Expression:
        return Expression(operation, other, self)

    return method, reflected


class _Arithmetic:
    """Makes a placeholder usable like the number that it stands for."""

    __add__, __radd__ = _deferred(operator.add)
    __sub__, __rsub__ = _deferred(operator.sub)
    __mul__, __rmul__ = _deferred(operator.mul)
    __truediv__, __rtruediv__ = _deferred(operator.truediv)
    __floordiv__, __rfloordiv__ = _deferred(operator.floordiv)
    __mod__, __rmod__ = _deferred(operator.mod)
    __pow__, __rpow__ = _deferred(operator.pow)
    __neg__ = _deferred(operator.neg)[0]
    __round__ = _deferred(round)[0]


class Expression(_Arithmetic):
    """An operation on placeholders and numbers, done when their values are known."""

    def __init__(self, operation: Callable[..., Any], *operands: Any) -> None:
        self.operation = operation
        self.operands = operands


class TrainerPlaceholderValues(_Arithmetic, Enum):
    """Stands for a value that the trainer knows once a run is set up; use it in
    `create_scheduler_fn`.

    Arithmetic works: `TrainerPlaceholderValues.NUM_EPOCHS *
    TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH`. Schedulers are stepped once an update
    whatever the number of processes, so both names of the number of updates in an epoch stand for
    the same.
    """

    NUM_EPOCHS = "the number of epochs"
    NUM_UPDATE_STEPS_PER_EPOCH = "the number of optimizer updates in an epoch"
    PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH = (
        "the number of optimizer updates in an epoch, in this process"
    )
    TRAIN_DATALOADER_LEN = "the number of training batches in an epoch"
    EVAL_DATALOADER_LEN = "the number of evaluation batches"


TrainerPlaceHolderValues = TrainerPlaceholderValues  # as the document spells it in a heading


def length_of(loader: Iterable[Any] | None) -> int | None:
    """The number of batches, where that is known."""
    try:
        return None if loader is None else len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def replace_trainer_placeholder_values(trainer: Trainer, instance: Any) -> Any:
    """A factory, such as a `functools.partial`, with the placeholders in it filled in from a
    trainer's run."""
    config = trainer.run_config
    known = TrainerPlaceholderValues
    values = {
        known.NUM_EPOCHS: config.num_epochs,
        known.NUM_UPDATE_STEPS_PER_EPOCH: config.num_update_steps_per_epoch,
        known.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: config.num_local_update_steps_per_epoch,
        known.TRAIN_DATALOADER_LEN: length_of(trainer._train_dataloader),
        known.EVAL_DATALOADER_LEN: length_of(trainer._eval_dataloader),
    }
    return _resolve(instance, values)


def _resolve(given: Any, values: Mapping[TrainerPlaceholderValues, int | None]) -> Any:
    """The same thing with every placeholder in it replaced: in partials, lists, tuples and dicts
    too."""
    if isinstance(given, TrainerPlaceholderValues):
        if values[given] is None:
            raise ConfigurationError(
                "unknown-placeholder",
                f"TrainerPlaceholderValues.{given.name} is not known in this run: {given.value} "
                "cannot be determined from the data. Pass data that has a length (and "
                "`eval_dataset=`, if the value depends on it), or the number.",
            )
        return values[given]
    if isinstance(given, Expression):
        return given.operation(*_resolve(given.operands, values))
    if isinstance(given, partial):
        function = _resolve(given.func, values)
        return partial(function, *_resolve(given.args, values), **_resolve(given.keywords, values))
    if isinstance(given, (list, tuple, dict)):
        return map_leaves(lambda leaf: _resolve(leaf, values), given)
    return given


class SchedulerBase(ABC):
    """Sets a field of every parameter group from a number of updates."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        for group in optimizer.param_groups:
            if param_group_field not in group:
                raise ConfigurationError(
                    "unknown-group-field",
                    f"{type(self).__name__} schedules {param_group_field!r}, which this optimizer "
                    f"does not have; {nearest(param_group_field, group)}",
                )
            group.setdefault(f"initial_{param_group_field}", group[param_group_field])

    @property
    def base_lr_values(self) -> list[Any]:
        """The value that each parameter group began with, before any scheduler changed it."""
        return [group[f"initial_{self.param_group_field}"] for group in self.optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> Any:
        """The values after `num_updates` updates: one for all groups, one for each, or None to
        change nothing."""

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
    """Counts the updates itself: `step()` once after each of them.

    The first update takes the values of 0 updates, so a scheduler sets those when it is made.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = 0

    def step(self) -> None:
        self._num_updates += 1
        self.step_update(self._num_updates)


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
                "warmup-longer-than-run",
                f"CosineLrScheduler: warm-up ({num_warmup_epochs} epochs) and cool-down "
                f"({num_cooldown_epochs}) are longer than the run ({total_num_epochs}).",
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
        return [self._rate(num_updates, peak) for peak in self.base_lr_values]

    def _rate(self, num_updates: int, peak: float) -> float:
        floor = self.lr_min
        start = self.warmup_starting_lr
        if self.min_lr_ratio is not None:
            floor = peak * self.min_lr_ratio
        if self.warmup_starting_lr_ratio is not None:
            start = peak * self.warmup_starting_lr_ratio
        return warmup_cosine(
            num_updates,
            self.total,
            peak=peak,
            floor=floor,
            warmup=self.warmup,
            start=start,
            cooldown=self.cooldown,
            k_decay=self.k_decay,
        )


class WSDLrScheduler(StatefulSchedulerBase):
    """Warm-up, a long stable phase, and a quick decay at the end.

    With `num_checkpoints` above 1 the learning rate also decays before earlier points, each at half
    the updates of the next, and is back at its peak after them: models saved there are as good as
    those of a shorter run. `lr_min` is a part of each group's own rate. `num_warmup_steps=None`
    warms up for a hundredth of the updates; a run that continues from a checkpoint
    (`is_continuation_from_checkpoint`) does not warm up.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        num_epochs: int | None = None,
        num_update_steps_per_epoch: int | None = None,
        total_steps: int | None = None,
        num_warmup_steps: int | None = 0,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = 1e-6,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> None:
        super().__init__(optimizer)
        if total_steps is None:
            total_steps = num_epochs * num_update_steps_per_epoch  # type: ignore[operator]
        self.total_steps = total_steps
        self.num_warmup_steps = total_steps // 100 if num_warmup_steps is None else num_warmup_steps
        self.decay_phase_ratio = decay_phase_ratio
        self.lr_min = lr_min
        self.warmup_starting_lr = warmup_starting_lr
        self.use_inverse_sqrt_decay = use_inverse_sqrt_decay
        self.num_checkpoints = num_checkpoints
        self.is_continuation_from_checkpoint = is_continuation_from_checkpoint
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: Any = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: Any = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        num_warmup_epochs: float | None = None,
        **options: Any,
    ) -> Callable[[Optimizer], WSDLrScheduler]:
        """For `train(create_scheduler_fn=...)`: over the whole run, whatever its length turns out
        to be."""
        if num_warmup_epochs is not None:
            options["num_warmup_steps"] = round(num_update_steps_per_epoch * num_warmup_epochs)
        options.setdefault("num_warmup_steps", None)
        return partial(
            cls,
            num_epochs=total_num_epochs,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            **options,
        )

    def get_updated_values(self, num_updates: int) -> list[float]:
        return [
            warmup_stable_decay(
                num_updates,
                self.get_checkpoint_steps(),
                peak=peak,
                floor=peak * self.lr_min,
                warmup=0 if self.is_continuation_from_checkpoint else self.num_warmup_steps,
                start=self.warmup_starting_lr,
                decay_ratio=self.decay_phase_ratio,
                shape="sqrt" if self.use_inverse_sqrt_decay else "inverse",
            )
            for peak in self.base_lr_values
        ]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was; a continuation begins anew, over its own updates, with the
        state's settings."""
        own = {
            "is_continuation_from_checkpoint": self.is_continuation_from_checkpoint,
            "total_steps": self.total_steps,
        }
        is_same_run = own.items() <= state_dict.items()
        super().load_state_dict(state_dict)
        if own["is_continuation_from_checkpoint"] and not is_same_run:
            super().load_state_dict({**own, "_num_updates": 0})

    # Positions in the schedule, for callbacks

    def get_checkpoint_steps(self) -> list[int]:
        """Where the decays end: the last at the end of training, each other one at half of the
        next."""
        return [self.total_steps // 2**power for power in reversed(range(self.num_checkpoints))]

    def get_decay_info(self) -> list[dict[str, int]]:
        """Each period from the end of one decay to that of the next, in updates."""
        ends = self.get_checkpoint_steps()
        periods = []
        for start, end in zip([0, *ends], ends, strict=False):
            decay = max(round(self.decay_phase_ratio * (end - start)), 1)
            periods.append(
                {
                    "period_start": start,
                    "period_end": end,
                    "decay_steps": decay,
                    "pre_decay_step": end - decay,
                }
            )
        return periods

    def get_phase_info(self, num_updates: int) -> dict[str, int]:
        """The period that contains this number of updates, or ends with it."""
        periods = self.get_decay_info()
        return next((one for one in periods if one["period_end"] >= num_updates), periods[-1])

    def get_current_step(self) -> int:
        """The number of the last update, counted from 0; -1 before the first."""
        return self._num_updates - 1
