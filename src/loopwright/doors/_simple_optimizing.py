"""Optimizers and schedulers of the simple door: settings of the config, and what an overridden method did with them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..callbacks.nonfinite import NonFiniteGuard
from ..errors import ConfigurationError, NonFiniteLossError
from ..training.step_checks import StepWatch, watch_own_steps
from ..training.update import Lane

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ..training.result import StepResult
    from ._simple_config import Settings
    from ._simple_engine import Engine


def settle_weight_decay(optimizer: Optimizer, value: float) -> str | None:
    """Give the config's weight decay to groups without one of their own; a line that says what was done, if anything.

    A group's value is its own where it is not the default of its class. Where that default is 0, a group with 0 beside
    others with more is meant to have 0.
    """
    kind, groups = type(optimizer).__name__, optimizer.param_groups
    said = f"config: training.weight_decay={value:g} is"
    if any("weight_decay" not in group for group in groups):
        return f"{said} not used: {kind} has no weight decay."
    if all(group["weight_decay"] == value for group in groups):
        return None
    parameter = inspect.signature(type(optimizer)).parameters.get("weight_decay")
    default = 0.0 if parameter is None or parameter.default is parameter.empty else parameter.default
    free = [group for group in groups if group["weight_decay"] == default]
    if not free or (default == 0 and len(free) < len(groups)):
        own = ", ".join(f"{group['weight_decay']:g}" for group in groups)
        return f"{said} not used: the optimizer ({kind}) has its own, {own}."
    for group in free:
        group["weight_decay"] = value
    where = "" if len(free) == len(groups) else f" in {len(free)} of {len(groups)} parameter groups"
    return f"{said} used by the optimizer ({kind}){where}, in place of the default, {default:g}."


def unused_rate(optimizer: Optimizer, value: float) -> str | None:
    """What to say of a learning rate in the config that a given optimizer does not have."""
    rates = [float(group.get("initial_lr", group.get("lr", value))) for group in optimizer.param_groups]
    if value in rates:
        return None
    own = ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
    return f"config: training.learning_rate={value:g} is not used: the optimizer that was given has its own, {own}."


def settle(optimizer: Optimizer, settings: Settings) -> list[str]:
    """Apply the config's settings to an optimizer; the lines that say what was and was not used."""
    lines = [None if settings.learning_rate is None else unused_rate(optimizer, settings.learning_rate)]
    lines.append(None if settings.weight_decay is None else settle_weight_decay(optimizer, settings.weight_decay))
    return [line for line in lines if line is not None]


def position_of(scheduler: Any) -> Any:
    """How far a scheduler is, to tell whether it was stepped."""
    found = getattr(scheduler, "last_epoch", None)
    return repr(scheduler.state_dict()) if found is None and hasattr(scheduler, "state_dict") else found


class Guard(NonFiniteGuard):
    """Refuses steps on losses that are not finite, in the words of this door."""

    def refuse(self, what: str) -> None:
        assert self._trainer is not None
        progress = self._trainer.progress
        what = what.replace(" of optimizer 'optimizer'", "")
        raise NonFiniteLossError(
            f"{what[0].upper()}{what[1:]} in batch {progress.epoch_step + 1} of epoch {progress.epoch + 1}; that "
            "optimizer step was not taken. Lower the learning rate, set training.max_grad_norm in the config, or look "
            "for bad samples."
        )


class OwnSteps(StepWatch):
    """Looks at the steps of an overridden `train_step`, which may also call backward() for a later optimizer.step()."""

    def _check_first(self, result: StepResult) -> None:
        grads = [param.grad for lane in self.lanes for param in lane.params]
        if all(grad is None for grad in grads) or self.optimization.calls != self._calls:
            super()._check_first(result)
        self._is_first = False


class EpochWatch:
    """What an epoch of the door did with weights, optimizers and schedulers, whoever wrote it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.own_steps = 0
        self._calls = engine.optimization.calls
        self._versions = self._count_changes()
        self._positions = {name: position_of(s.scheduler) for name, s in engine.schedules.items()}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> EpochWatch:
        for lane in self.engine.optimization.lanes.values():
            self._handles += watch_own_steps(lane, self.engine.check_own_step, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def has_trained(self) -> bool:
        is_stepped = self.own_steps or self.engine.optimization.calls != self._calls
        return bool(is_stepped) or self._versions != self._count_changes()

    def has_moved(self, name: str) -> bool:
        """Whether the scheduler was stepped in this epoch."""
        return bool(self._positions.get(name) != position_of(self.engine.schedules[name].scheduler))

    def check_per_batch(self) -> None:
        """Refuse optimizer steps of the user's own after which no one stepped the scheduler that counts batches."""
        for name, schedule in self.engine.schedules.items():
            if self.own_steps and schedule.interval == "update" and not self.has_moved(name):
                raise ConfigurationError(
                    f"train_epoch called optimizer.step() {self.own_steps} times and scheduler.step() never, while "
                    f"{type(schedule.scheduler).__name__} is to be stepped after each batch: call "
                    "self.scheduler.step() after self.optimizer.step(), or self.train_step(batch) in place of both."
                )

    def _count(self, lane: Lane) -> None:
        self.own_steps += 1

    def _count_changes(self) -> int:
        return sum(param._version for module in self.engine.modules.values() for param in module.parameters())


def is_clipped(params: list[nn.Parameter], max_norm: float) -> bool:
    """Whether gradients are within a norm, but for rounding."""
    norms = [torch.linalg.vector_norm(param.grad) for param in params if param.grad is not None]
    return not norms or float(torch.linalg.vector_norm(torch.stack(norms))) <= max_norm * 1.001
