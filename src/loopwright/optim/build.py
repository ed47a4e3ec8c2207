"""Build optimizers and schedulers from constructor arguments: objects, or factories; and check
these arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from ..errors import ConfigurationError, check_number
from ..metrics.best import Mode
from ..text import kind_of


@runtime_checkable
class NamedFactory(Protocol):
    """An optimizer factory that needs the names of parameters, so it gets the models."""

    def build(self, models: Mapping[str, nn.Module]) -> Optimizer: ...


@runtime_checkable
class CurveLike(Protocol):
    """An object with `value(done)`, such as the curves of `loopwright.schedules`."""

    def value(self, done: float) -> float: ...


@dataclass(frozen=True, slots=True)
class CurveSchedule:
    """A curve as a scheduler. It has no state and is never stepped: `ScheduleLearningRate` sets its
    values."""

    curve: Any
    optimizer: Optimizer

    def step(self) -> None:
        """Do nothing: the value depends on the completed fraction of the run."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: a curve has no state."""


OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], Any]
OptimizerLike = Optimizer | OptimizerFactory | NamedFactory
LossFunction = Callable[..., Any]
Interval = Literal["update", "epoch"]
ORDER = "The order is `Trainer(model, optimizer, loss_fn)`."


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scheduler with its own cadence, for `Trainer(scheduler=)`.

    By default a scheduler is stepped as its own documentation says: OneCycleLR and CyclicLR after
    every update, the others after every epoch.

    Args:
        scheduler: A torch scheduler, or a factory `optimizer -> scheduler`.
        every: When to step it: "update" or "epoch".
        metric: The metric that ReduceLROnPlateau watches; "eval_loss" if there is evaluation data,
            otherwise "loss".
        mode: Which values of that metric are better, "min" or "max", where the metric's name does
            not say it.

    >>> from functools import partial
    >>> import torch
    >>> from loopwright import Schedule, Trainer
    >>> model = torch.nn.Linear(2, 1)
    >>> scheduler = Schedule(partial(torch.optim.lr_scheduler.StepLR, step_size=100), every="update")
    >>> trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), scheduler=scheduler)
    """

    scheduler: Any
    every: Interval | None = None
    metric: str | None = None
    mode: Mode | None = None

    @property
    def interval(self) -> Interval:
        if self.every is not None:
            return self.every
        return "update" if isinstance(self.scheduler, (OneCycleLR, CyclicLR)) else "epoch"

    @property
    def watches(self) -> bool:
        """Whether `scheduler.step` takes a metric."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def step(self, metrics: Mapping[str, float]) -> None:
        """Step the scheduler at the end of an epoch with these metrics."""
        if not self.watches:
            self.scheduler.step()
            return
        name = self.metric or ("eval_loss" if "eval_loss" in metrics else "loss")
        if name not in metrics:
            raise ConfigurationError(
                "plateau-metric",
                f"ReduceLROnPlateau watches {name!r}, which this epoch did not measure; available: "
                f"{', '.join(metrics)}. Pass `Schedule(scheduler, metric=...)`.",
            )
        self.scheduler.step(metrics[name])


SchedulerLike = LRScheduler | ReduceLROnPlateau | SchedulerFactory | CurveLike | Schedule


def build_optimizer(
    given: Any,
    params: Callable[[], Iterable[nn.Parameter]],
    name: str = "optimizer",
    *,
    models: Mapping[str, nn.Module] | None = None,
) -> Optimizer:
    """Return the given optimizer, or the optimizer that a factory builds of the parameters, fused
    where possible.

    `models` are the models of these parameters, for a factory that needs the names of parameters.
    """
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, NamedFactory) and not isinstance(given, type):
        return _fused(given.build(models or {}), models or {})
    check_optimizer(given, name)
    built = call_factory(given, params(), name, "the parameters")
    if not isinstance(built, Optimizer):
        raise ConfigurationError(
            "not-an-optimizer-built",
            f"The factory given as {name} returned a {type(built).__name__}, which is not a torch "
            "optimizer.",
        )
    return _fused(built, models or {})


def _fused(optimizer: Optimizer, models: Mapping[str, nn.Module]) -> Optimizer:
    """Return the same object with its fused implementation, if it has one and the user chose no
    implementation.

    One that its factory has given hooks, or a state, stays as it is: they would be lost. Fused ones
    have no sparse gradients.
    """
    from .._torch_compat.fast_paths import OptimizerStep

    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
    chosen = ("fused", "foreach", "capturable", "differentiable", "dampening")
    groups = optimizer.param_groups
    if type(optimizer) not in kinds or OptimizerStep(optimizer).plain_function() is None:
        return optimizer
    if optimizer.state and type(optimizer) is not torch.optim.Adagrad:
        return optimizer
    for group in groups:
        is_chosen = any(group.get(option) for option in chosen)
        if is_chosen or group.get("fused") is False or group.get("foreach") is False:
            return optimizer
        for param in group["params"]:
            if not param.is_floating_point() or param.device.type not in ("cpu", "cuda", "mps"):
                return optimizer
    parts = (part for model in models.values() for part in model.modules())
    if any(getattr(part, "sparse", False) for part in parts):
        return optimizer
    accepted = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    for group in groups:
        group.pop("fused", None)
    type(optimizer).__init__(optimizer, groups, **(options | {"fused": True}))
    return optimizer


def build_schedule(given: Any, optimizer: Optimizer | None) -> Schedule:
    """Return a `Schedule` of a scheduler, a curve, a factory `optimizer -> scheduler`, or a
    `Schedule` of these."""
    schedule = given if isinstance(given, Schedule) else Schedule(given)
    scheduler = schedule.scheduler
    if schedule.every not in (None, "update", "epoch"):
        raise ConfigurationError(
            "schedule-interval", f"Schedule(every={schedule.every!r}): use 'update' or 'epoch'."
        )
    if isinstance(scheduler, type) or not hasattr(scheduler, "step"):
        is_curve = isinstance(scheduler, CurveLike) and not isinstance(scheduler, type)
        if not callable(scheduler) and not is_curve:
            raise ConfigurationError(
                "scheduler-argument",
                f"scheduler is a {type(scheduler).__name__}: pass a scheduler, or a function that "
                "takes the optimizer and returns one.",
            )
        if optimizer is None:
            raise ConfigurationError(
                "scheduler-of-several",
                "A scheduler factory needs its optimizer, but there are several optimizers: pass "
                "`scheduler={'name of the optimizer': factory}`.",
            )
        build = CurveSchedule if is_curve else _build_scheduler
        scheduler = build(scheduler, optimizer)
    if schedule.every == "update" and isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigurationError(
            "plateau-every-update",
            "ReduceLROnPlateau watches a metric of the epoch, so it cannot be stepped every "
            "update: leave out `every`.",
        )
    return replace(schedule, scheduler=scheduler)


def _build_scheduler(factory: Callable[[Any], Any], optimizer: Optimizer) -> Any:
    """Return the scheduler that a factory makes for an optimizer."""
    advice = (
        "A function given as scheduler takes the optimizer and returns a scheduler. For a factor "
        "as a function of the epoch, pass `functools.partial(torch.optim.lr_scheduler.LambdaLR, "
        "lr_lambda=...)`; for another interval, `Schedule(function, every='update')`."
    )
    try:
        scheduler = call_factory(factory, optimizer, "scheduler", "the optimizer")
    except TypeError as error:
        error.add_note(advice)
        raise
    if isinstance(scheduler, Schedule) or not hasattr(scheduler, "step"):
        raise ConfigurationError(
            "scheduler-returned",
            f"The function given as scheduler returned {scheduler!r}. {advice}",
        )
    return scheduler


def check_given(model: Any, optimizer: Any, loss_fn: Any, *, seed: Any) -> None:
    """Raise a `ConfigurationError` for constructor arguments of a trainer that cannot work, with
    advice."""
    for name, one in named(model, "model").items():
        if isinstance(one, type):
            raise ConfigurationError(
                "model-class",
                f"{name} is the class {one.__name__}: create an instance, `{one.__name__}(...)`.",
            )
        if not isinstance(one, nn.Module):
            raise ConfigurationError(
                "model-argument",
                f"{name} is a {type(one).__name__}: pass a torch.nn.Module, or a dict of several "
                f"models by name. {ORDER}",
            )
    for name, one in named(optimizer, "optimizer").items():
        check_optimizer(one, name)
    if isinstance(loss_fn, type):
        raise ConfigurationError(
            "loss-class",
            f"loss_fn is the class {loss_fn.__name__}: create an instance, "
            f"`{loss_fn.__name__}()`. {ORDER}",
        )
    if loss_fn is not None and not callable(loss_fn):
        raise ConfigurationError(
            "loss-function",
            f"loss_fn is {kind_of(loss_fn)}: pass a function of (outputs, targets), such as "
            f"`nn.MSELoss()`. {ORDER}",
        )
    if seed not in (None, "auto"):
        check_number("seed", seed, otherwise="None for different random numbers in each run")


def check_optimizer(given: Any, name: str) -> None:
    """Raise a `ConfigurationError` unless the argument is an optimizer or may be a factory of
    one."""
    made = given if isinstance(given, type) else type(given)
    if issubclass(made, nn.Module) or getattr(given, "__module__", None) == "torch.nn.functional":
        kind = getattr(given, "__name__", type(given).__name__)
        raise ConfigurationError(
            "optimizer-order", f"{name} is {kind}, which is not an optimizer. {ORDER}"
        )
    if not callable(given) and not isinstance(given, (Optimizer, NamedFactory)):
        raise ConfigurationError(
            "optimizer-argument",
            f"{name} is {kind_of(given)}: pass a torch optimizer, a function that takes the "
            f"parameters and returns one, such as `partial(torch.optim.Adam, lr=1e-3)`, or a "
            "dict of several by name, and override `train_step`.",
        )


def call_factory(factory: Callable[[Any], Any], argument: Any, name: str, what: str) -> Any:
    """Call a factory with its one argument; raise a `ConfigurationError` with advice if it needs
    more arguments."""
    try:
        return factory(argument)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        label = getattr(factory, "__name__", type(factory).__name__)
        raise ConfigurationError(
            "factory-arguments",
            f"The factory given as {name} was called with only {what}, and failed: {error}. Set "
            f"its other arguments with `functools.partial({label}, ...)`.",
        ) from None


def named(given: Any, default: str) -> dict[str, Any]:
    """Return one object as a mapping under a default name; a mapping as a dict; None as an empty
    dict."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else {default: given}
