"""The models, optimizers and schedulers behind the simple door, as its config and later assignments want them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..callback import Callback
from ..errors import ConfigurationError
from ..optim.build import Interval, build_schedule
from ..runtime import resolve_runtime
from ..runtime.base import detect_device
from ..trainer import Trainer as CoreTrainer
from ..training.update import Optimization
from ._simple_checks import keywords_of, takes
from ._simple_config import Settings
from ._simple_optimizing import position_of, settle


class Components(CoreTrainer):
    """What the door's trainer consists of; all of it can be exchanged."""

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
        self.settings, self.config = Settings.of(config), config
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
        """Go by another config from now on."""
        self.settings, self.config = settings, config
        self.accumulate, self.clip_norm = settings.gradient_accumulation_steps or 1, settings.max_grad_norm
        for lane in self.optimization.lanes.values():
            lane.clip_norm = self.clip_norm
        for optimizer in self.optimizers.values():
            self._settle(optimizer)
        self._set_cadence()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers["optimizer"] = optimizer
        self._settle(optimizer)

    def set_scheduler(self, given: Any) -> None:
        """Another scheduler, or none."""
        self._stepped, self._paced = {}, {}
        if given is None:
            self.schedules.pop("scheduler", None)
        else:
            self.schedules["scheduler"] = build_schedule(given, self.optimizers.get("optimizer"))
            self.trained.setdefault("schedule 'scheduler'", None)  # so that a first one is noticed as another one is
        self._set_cadence()

    def set_device(self, device: torch.device | None) -> None:
        """Move the models and what optimizers remember, and send batches there from now on."""
        device = detect_device() if device is None else device
        if device == self.runtime.device:
            return
        if self.is_running or self.runtime.world > 1:
            when = "while this trainer is training" if self.is_running else "to one of several processes"
            raise ConfigurationError(f"device={str(device)!r} was assigned {when}: assign it before, or leave it out.")
        self.runtime = resolve_runtime(device, self.runtime.precision)
        self.optimization = Optimization({}, self.window)  # made anew for that device by the next step
        for module in self.modules.values():
            self.runtime.place(module)
        for optimizer in self.optimizers.values():
            optimizer.load_state_dict(optimizer.state_dict())  # which puts its state beside its parameters

    def _default_optimizer(self, params: Any) -> Optimizer:
        given = {"lr": self.settings.learning_rate, "weight_decay": self.settings.weight_decay}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return torch.optim.AdamW(params, **options)

    def _settle(self, optimizer: Optimizer) -> None:
        for line in settle(optimizer, self.settings):
            self.say(line)

    def _set_cadence(self) -> None:
        """Have schedulers stepped per batch or per epoch, where the config says so."""
        per_batch = self.settings.scheduler_step_per_batch
        every: Interval | None = None if per_batch is None else "update" if per_batch else "epoch"
        for name, schedule in self.schedules.items():
            if schedule.every is not None and id(schedule) != self._paced.get(name):
                continue
            if schedule.watches and per_batch:
                raise ConfigurationError(
                    "ReduceLROnPlateau watches a metric of whole epochs and cannot be stepped after each batch: set "
                    "training.scheduler_step_per_batch to False, or use another scheduler."
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
        """Refuse a loop around `train_epoch` that steps a scheduler which that has stepped already."""
        for name, position in self._stepped.items():
            if name in self.schedules and position_of(self.schedules[name].scheduler) != position:
                raise ConfigurationError(
                    "The scheduler was stepped by train_epoch, and once more after it: leave out your own "
                    "scheduler.step(), or step it in an overridden train_epoch."
                )

    def note_stepped(self) -> None:
        self._stepped = {name: position_of(s.scheduler) for name, s in self.schedules.items() if s.interval == "epoch"}
