"""The components of a simple trainer as attributes, which a subclass may assign at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import ConfigurationError
from .checks import as_device, check_loss, check_model
from .config import Settings

if TYPE_CHECKING:
    from .engine import Engine


class NotBuiltError(ConfigurationError, AttributeError):
    """An attribute was read from a trainer whose `__init__` has not run."""


class Assignable:
    """Model, optimizer, scheduler, device, loss function and config; what is assigned counts from
    the next step on."""

    _engine: Engine

    @property
    def model(self) -> nn.Module:
        """The model. Assign another one together with an optimizer of its parameters."""
        return self._engine.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self._is_early("model", model):
            return
        check_model(model, "assign")
        self._engine.model = model
        self._engine.runtime.place(model)

    @property
    def optimizer(self) -> Optimizer | None:
        """The torch optimizer, also if you gave a factory or nothing; None while the whole model is
        frozen."""
        return self._engine.optimizers.get("optimizer")

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        if self._is_early("optimizer", optimizer):
            return
        if not isinstance(optimizer, Optimizer):
            raise ConfigurationError(
                f"optimizer is a {type(optimizer).__name__}: assign a torch optimizer."
            )
        self._engine.set_optimizer(optimizer)

    @property
    def scheduler(self) -> Any:
        """The scheduler, or None. One that you assign is stepped like one given to the
        constructor."""
        schedule = self._engine.schedules.get("scheduler")
        return None if schedule is None else schedule.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Any) -> None:
        if not self._is_early("scheduler", scheduler):
            self._engine.set_scheduler(scheduler)

    @property
    def device(self) -> torch.device:
        """The device of the model and the batches. Assigning another one moves the model there."""
        return self._engine.runtime.device

    @device.setter
    def device(self, device: torch.device | str) -> None:
        if not self._is_early("device", device):
            self._engine.set_device(as_device(device))

    @property
    def loss_fn(self) -> Callable[..., Any] | None:
        """The loss function of (outputs, targets), or None if the model's outputs have a loss."""
        loss_fn: Callable[..., Any] | None = self._engine.loss_fn
        return loss_fn

    @loss_fn.setter
    def loss_fn(self, loss_fn: Callable[..., Any] | None) -> None:
        if self._is_early("loss_fn", loss_fn):
            return
        check_loss(loss_fn)
        self._engine.loss_fn = loss_fn
        if isinstance(loss_fn, nn.Module):
            self._engine.runtime.place(loss_fn)

    @property
    def config(self) -> Any:
        """The config as you gave it. Settings are read once: assign a config to have them read
        again."""
        return self._engine.config

    @config.setter
    def config(self, config: Any) -> None:
        if not self._is_early("config", config):
            self._engine.use(Settings.of(config), config)

    def _is_early(self, name: str, value: Any) -> bool:
        """Whether `super().__init__` has not run; then the value is kept, to be compared with its
        arguments."""
        if "_engine" in vars(self):
            return False
        vars(self).setdefault("_early", {})[name] = value
        return True

    def _check_early(self) -> None:
        """Refuse what a subclass assigned before `super().__init__`, and would have lost."""
        for name, value in vars(self).pop("_early", {}).items():
            own = getattr(self, name)
            if own is not value and not (name == "device" and as_device(value) in (None, own)):
                raise ConfigurationError(
                    f"self.{name} was assigned before super().__init__(), which overwrites it: "
                    "pass it as an argument there, or assign it afterwards."
                )

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            early = vars(self).get("_early", {})
            if name in early:
                return early[name]
            if "_engine" in vars(self) or name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise NotBuiltError(
                f"{type(self).__name__} has no {'model' if name == '_engine' else name} yet: call "
                "super().__init__(model, optimizer, loss_fn) first in "
                f"{type(self).__name__}.__init__."
            )
