"""The models, optimizers and schedulers behind the simple interface, set by its config and by later
assignments."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..._torch_compat import version_of
from ...callback import Callback
from ...callbacks.nonfinite import NonFiniteGuard
from ...errors import ConfigurationError, NonFiniteLossError
from ...optim.build import Interval, build_schedule
from ...runtime import resolve_runtime
from ...runtime.base import detect_device
from ...training.step_checks import StepWatch, scheduler_position, watch_own_steps
from ...training.update import OptimizerUpdate
from ...training.updates import Updates
from .._shared import InterfaceCore
from .checks import keywords_of, takes
from .config import Settings

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ...metrics.result import StepResult
    from .engine import Engine


def settle_weight_decay(optimizer: Optimizer, value: float) -> str | None:
    """Give the config's weight decay to groups without one of their own; a line that says what was
    done, if anything.

    A group's value is its own where it is not the default of its class. Where that default is 0, a
    group with 0 beside others with more is meant to have 0.
    """
    kind = type(optimizer).__name__
    groups = optimizer.param_groups
    said = f"config: training.weight_decay={value:g} is"
    if any("weight_decay" not in group for group in groups):
        return f"{said} not used: {kind} has no weight decay."
    if all(group["weight_decay"] == value for group in groups):
        return None
    parameter = inspect.signature(type(optimizer)).parameters.get("weight_decay")
    default = (
        0.0 if parameter is None or parameter.default is parameter.empty else parameter.default
    )
    free = [group for group in groups if group["weight_decay"] == default]
    if not free or (default == 0 and len(free) < len(groups)):
        own = ", ".join(f"{group['weight_decay']:g}" for group in groups)
        return f"{said} not used: the optimizer ({kind}) has its own, {own}."
    for group in free:
        group["weight_decay"] = value
    where = "" if len(free) == len(groups) else f" in {len(free)} of {len(groups)} parameter groups"
    return f"{said} used by the optimizer ({kind}){where}, instead of the default, {default:g}."


def unused_rate(optimizer: Optimizer, value: float) -> str | None:
    """What to say of a learning rate in the config that a given optimizer does not have."""
    rates = [
        float(group.get("initial_lr", group.get("lr", value))) for group in optimizer.param_groups
    ]
    if value in rates:
        return None
    own = ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
    return (
        f"config: training.learning_rate={value:g} is not used: the optimizer that you passed "
        f"has its own, {own}."
    )


def settle(optimizer: Optimizer, settings: Settings) -> list[str]:
    """Apply the config's settings to an optimizer; the lines that say what was and was not used."""
    lines = [
        None if settings.learning_rate is None else unused_rate(optimizer, settings.learning_rate)
    ]
    lines.append(
        None
        if settings.weight_decay is None
        else settle_weight_decay(optimizer, settings.weight_decay)
    )
    return [line for line in lines if line is not None]


class Guard(NonFiniteGuard):
    """Refuses steps on losses that are not finite, in the words of this interface."""

    def refuse(self, what: str) -> None:
        assert self._trainer is not None
        progress = self._trainer.progress
        what = what.replace(" of optimizer 'optimizer'", "")
        raise NonFiniteLossError(
            f"{what[0].upper()}{what[1:]} in batch {progress.epoch_step + 1} of epoch "
            f"{progress.epoch + 1}; that optimizer step was not taken. Lower the learning rate, "
            "set training.max_grad_norm in the config, or look for bad samples."
        )


class OwnSteps(StepWatch):
    """Looks at the steps of an overridden `train_step`, which may also call backward() for a later
    optimizer.step()."""

    def _check_first(self, result: StepResult) -> None:
        grads = [param.grad for update in self.updates for param in update.params]
        if all(grad is None for grad in grads) or self.optimization.calls != self._calls:
            super()._check_first(result)
        self._is_first = False


class EpochWatch:
    """Watches what one epoch changes, also one that the user wrote: weights, optimizers and
    schedulers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.own_steps = 0
        self._calls = engine.run.updates.calls
        self._versions = self._count_changes()
        self._positions = {
            name: scheduler_position(s.scheduler) for name, s in engine.schedules.items()
        }
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> EpochWatch:
        for update in self.engine.run.updates.by_name.values():
            self._handles += watch_own_steps(update, self.engine._check_own_step, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def has_trained(self) -> bool:
        is_stepped = self.own_steps or self.engine.run.updates.calls != self._calls
        return bool(is_stepped) or self._versions != self._count_changes()

    def has_moved(self, name: str) -> bool:
        """Whether the scheduler was stepped in this epoch."""
        return bool(
            self._positions.get(name) != scheduler_position(self.engine.schedules[name].scheduler)
        )

    def check_per_batch(self) -> None:
        """Refuse optimizer steps of the user's own without steps of the scheduler that counts
        batches."""
        for name, schedule in self.engine.schedules.items():
            if self.own_steps and schedule.interval == "update" and not self.has_moved(name):
                raise ConfigurationError(
                    f"train_epoch called optimizer.step() {self.own_steps} times but never "
                    f"scheduler.step(), although {type(schedule.scheduler).__name__} must be "
                    "stepped after each batch: call self.scheduler.step() after "
                    "self.optimizer.step(), or self.train_step(batch) instead of both."
                )

    def _count(self, update: OptimizerUpdate) -> None:
        self.own_steps += 1

    def _count_changes(self) -> int:
        return sum(
            version_of(param)
            for module in self.engine.modules.values()
            for param in module.parameters()
        )


def is_clipped(params: list[nn.Parameter], max_norm: float) -> bool:
    """Whether gradients are within a norm, but for rounding."""
    norms = [torch.linalg.vector_norm(param.grad) for param in params if param.grad is not None]
    return not norms or float(torch.linalg.vector_norm(torch.stack(norms))) <= max_norm * 1.001


class Components(InterfaceCore):
    """The components of the interface's trainer; each can be replaced."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Any,
        config: Any,
        device: torch.device | None,
        scheduler: Any,
        callbacks: list[Callback],
    ) -> None:
        self.settings = Settings.of(config)
        self.config = config
        self._stepped: dict[str, Any] = {}  # where `train_epoch` left the schedulers
        self._paced: dict[str, int] = {}  # schedules whose cadence is the config's, by their ids
        self._signature: tuple[Any, set[str] | None] = (None, None)  # of a model, with the model
        self._loss_takes: tuple[Any, bool] = (None, False)
        super().__init__(
            model,
            self._default_optimizer if optimizer is None else optimizer,
            loss_fn,
            scheduler=scheduler,
            callbacks=callbacks,
            accumulate=self.settings.gradient_accumulation_steps or 1,
            clip_norm=self.settings.max_grad_norm,
            compile=self.settings.compile,
            runtime=device,
            seed=None,
        )

    @property
    def is_running(self) -> bool:
        """Whether a `train` or `train_epoch` call is under way."""
        raise NotImplementedError

    def configure_optimizers(self) -> None:
        super().configure_optimizers()
        for optimizer in self.optimizers.values():
            self._settle(optimizer)
        self._set_cadence()

    def use(self, settings: Settings, config: Any) -> None:
        """Use another config from now on."""
        if settings.compile != self.settings.compile:
            raise ConfigurationError(
                f"config: training.compile is {settings.compile!r} now and was "
                f"{self.settings.compile!r}: it counts when the trainer is built, so pass that "
                "config to Trainer(...)."
            )
        self.settings = settings
        self.config = config
        self.accumulate = settings.gradient_accumulation_steps or 1
        self.clip_norm = settings.max_grad_norm
        for update in self.run.updates.by_name.values():
            update.clip_norm = self.clip_norm
        for optimizer in self.optimizers.values():
            self._settle(optimizer)
        self._set_cadence()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers["optimizer"] = optimizer
        self._settle(optimizer)

    def set_scheduler(self, given: Any) -> None:
        """Another scheduler, or none."""
        self._stepped = {}
        self._paced = {}
        if given is None:
            self.schedules.pop("scheduler", None)
        else:
            self.schedules["scheduler"] = build_schedule(given, self.optimizers.get("optimizer"))
            # so that a first one is noticed as another one is
            self._components.trained.setdefault("schedule 'scheduler'", None)
        self._set_cadence()

    def set_device(self, device: torch.device | None) -> None:
        """Move the models, the optimizers' state and all further batches to a device."""
        device = detect_device() if device is None else device
        if device == self.runtime.device:
            return
        if self.is_running or self.runtime.world > 1:
            when = (
                "while this trainer is training"
                if self.is_running
                else "in a run of several processes"
            )
            raise ConfigurationError(
                f"device={str(device)!r} was assigned {when}: assign it earlier, or leave it out."
            )
        self.runtime = resolve_runtime(device, self.runtime.precision)
        # made anew for that device by the next step
        self.run.updates = Updates({}, self.run.window)
        for module in self.modules.values():
            self.runtime.place(module)
        for optimizer in self.optimizers.values():
            # which puts its state beside its parameters
            optimizer.load_state_dict(optimizer.state_dict())

    def _default_optimizer(self, params: Any) -> Optimizer:
        given = {"lr": self.settings.learning_rate, "weight_decay": self.settings.weight_decay}
        options: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        return torch.optim.AdamW(params, **options)

    def _settle(self, optimizer: Optimizer) -> None:
        for line in settle(optimizer, self.settings):
            self.run.say(line)

    def _set_cadence(self) -> None:
        """Have schedulers stepped per batch or per epoch, where the config says so."""
        per_batch = self.settings.scheduler_step_per_batch
        every: Interval | None = None if per_batch is None else "update" if per_batch else "epoch"
        for name, schedule in self.schedules.items():
            if schedule.every is not None and id(schedule) != self._paced.get(name):
                continue
            if schedule.watches and per_batch:
                raise ConfigurationError(
                    "ReduceLROnPlateau watches a metric of whole epochs and cannot be stepped "
                    "after each batch: set training.scheduler_step_per_batch to False, or use "
                    "another scheduler."
                )
            self.schedules[name] = replace(schedule, every=every)
            self._paced[name] = id(self.schedules[name])

    @property
    def model_keywords(self) -> set[str] | None:
        """Names of the arguments that the model takes; None where it takes any."""
        if self._signature[0] is not self.model:
            self._signature = (self.model, keywords_of(self.model))
        return self._signature[1]

    @property
    def loss_takes_targets(self) -> bool:
        if self._loss_takes[0] is not self.loss_fn:
            self._loss_takes = (self.loss_fn, takes(self.loss_fn, 2))
        return self._loss_takes[1]

    def check_stepped_once(self) -> None:
        """Refuse a loop around `train_epoch` that steps a scheduler which that has stepped
        already."""
        for name, position in self._stepped.items():
            if (
                name in self.schedules
                and scheduler_position(self.schedules[name].scheduler) != position
            ):
                raise ConfigurationError(
                    "The scheduler was stepped by train_epoch, and again after it: remove your "
                    "own scheduler.step(), or step it in an overridden train_epoch."
                )

    def note_stepped(self) -> None:
        by_epoch = {
            name: s.scheduler for name, s in self.schedules.items() if s.interval == "epoch"
        }
        self._stepped = {
            name: scheduler_position(scheduler) for name, scheduler in by_epoch.items()
        }
