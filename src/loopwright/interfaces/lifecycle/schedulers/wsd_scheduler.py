"""Warm-up, a long stable phase and a quick decay, once or before each of several checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ....errors import ConfigurationError
from ....schedules import warmup_stable_decay
from ..placeholders import TrainerPlaceholderValues
from .scheduler_base import StatefulSchedulerBase


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
        self.total_steps = _total(num_epochs, num_update_steps_per_epoch, total_steps)
        if (
            num_checkpoints < 1
            or not 0 < decay_phase_ratio <= 1
            or lr_min <= 0
            or self.total_steps < 1
        ):
            raise ConfigurationError(
                f"WSDLrScheduler(total_steps={self.total_steps}, "
                f"num_checkpoints={num_checkpoints}, decay_phase_ratio={decay_phase_ratio}, "
                f"lr_min={lr_min}): use at least 1 step and 1 checkpoint, a ratio up to 1, and a "
                "minimum above 0."
            )
        self.num_warmup_steps = (
            self.total_steps // 100 if num_warmup_steps is None else num_warmup_steps
        )
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
                self.checkpoint_steps,
                peak=peak,
                floor=peak * self.lr_min,
                warmup=0 if self.is_continuation_from_checkpoint else self.num_warmup_steps,
                start=self.warmup_starting_lr,
                decay_ratio=self.decay_phase_ratio,
                shape="sqrt" if self.use_inverse_sqrt_decay else "inverse",
            )
            for peak in self.base_values
        ]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was; a continuation begins anew, over its own updates, with the
        state's settings."""
        is_continuation = self.is_continuation_from_checkpoint
        total = self.total_steps
        is_same_run = (
            state_dict.get("is_continuation_from_checkpoint")
            and state_dict.get("total_steps") == total
        )
        vars(self).update(state_dict)
        self.is_continuation_from_checkpoint = is_continuation
        if is_continuation and not is_same_run:
            self.total_steps = total
            self._num_updates = 0

    # Positions in the schedule, for callbacks

    @property
    def checkpoint_steps(self) -> list[int]:
        return checkpoint_steps(self.total_steps, self.num_checkpoints)

    def get_checkpoint_steps(self) -> list[int]:
        """Where the decays end: the last at the end of training, each other one at half of the
        next."""
        return self.checkpoint_steps

    def get_decay_info(self) -> list[dict[str, int]]:
        """Each period from the end of one decay to that of the next, in updates."""
        ends = self.checkpoint_steps
        return [self._period(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def get_phase_info(self, num_updates: int) -> dict[str, int]:
        """The period that contains this number of updates, or ends with it."""
        periods = self.get_decay_info()
        return next(
            (period for period in periods if period["period_end"] >= num_updates), periods[-1]
        )

    def get_current_phase_info(self) -> dict[str, int]:
        return self.get_phase_info(self.get_current_step())

    @property
    def previous_checkpoint_step(self) -> int | None:
        """The last update before the decay that was reached last."""
        begun = [
            info["pre_decay_step"]
            for info in self.get_decay_info()
            if info["pre_decay_step"] <= self._num_updates
        ]
        return begun[-1] if begun else None

    def get_current_step(self) -> int:
        """The number of the last update, counted from 0; -1 before the first."""
        return self._num_updates - 1

    def _period(self, start: int, end: int) -> dict[str, int]:
        decay = decay_steps(start, end, self.decay_phase_ratio)
        return {
            "period_start": start,
            "period_end": end,
            "decay_steps": decay,
            "pre_decay_step": end - decay,
        }


def checkpoint_steps(total: int, num_checkpoints: int) -> list[int]:
    """Where the decays end: the last at the end of training, each other one at half of the next."""
    return [total // 2**power for power in reversed(range(num_checkpoints))]


def decay_steps(start: int, end: int, ratio: float) -> int:
    return max(round(ratio * (end - start)), 1)


def _total(num_epochs: int | None, updates_per_epoch: int | None, total_steps: int | None) -> int:
    if total_steps is not None and num_epochs is not None and updates_per_epoch is not None:
        raise ConfigurationError(
            "WSDLrScheduler: `total_steps` was given together with `num_epochs` and "
            "`num_update_steps_per_epoch`: give one or the other."
        )
    if total_steps is not None:
        return total_steps
    if num_epochs is None or updates_per_epoch is None:
        raise ConfigurationError(
            "WSDLrScheduler: pass `total_steps`, or `num_epochs` and `num_update_steps_per_epoch`."
        )
    return num_epochs * updates_per_epoch
