"""The modular interface: `DreamTrainer`, for several models and optimizers, steps of one's own, and
many devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...callback import check_hooks
from ...data.random import seed_generators
from ...errors import ConfigurationError
from ...metrics.history import History
from ...training import steps as loop
from ...training.components import check_clipping
from ...training.train_call import run_training
from .._shared import LoggingTrainer, is_overridden
from .callback import Hooks
from .config import DreamTrainerConfig, allow_loading, check_config
from .core import NAMES, ModularCore, RunLimits
from .loops import Loader

F = TypeVar("F", bound=Callable[..., Any])


class DreamTrainer(LoggingTrainer, Hooks):
    """Override `configure_*`, `training_step` and `validation_step`, then call `fit`.

    Components are whatever `configure_*` (or `__init__`) assigns to self: modules, optimizers,
    schedulers, each saved under its own name. In `training_step`, `self.backward(loss)` is enough:
    every optimizer that got gradients is clipped and stepped when the accumulation window ends.
    With several optimizers `self.step(optimizer)` says whose turn it is, and
    `self.backward(loss, optimizer)` whom gradients are for.

    Args:
        config: The settings, a `DreamTrainerConfig` or a subclass.

    Example:
        >>> import torch
        >>> from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig
        >>> class Regression(DreamTrainer):
        ...     def configure_models(self):
        ...         self.model = torch.nn.Linear(2, 1)
        ...
        ...     def configure_optimizers(self):
        ...         self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        ...
        ...     def configure_dataloaders(self):
        ...         return [torch.ones(8, 2)] * 4, None
        ...
        ...     def training_step(self, batch, batch_idx):
        ...         loss = self.model(batch).square().mean()
        ...         self.backward(loss)
        ...         return {"loss": loss}
        >>> trainer = Regression(DreamTrainerConfig(n_epochs=2))
    """

    def __init__(self, config: DreamTrainerConfig) -> None:
        check_config(config)
        check_hooks(self, Hooks, allow_other=True)
        NAMES.check_callback(self)
        NAMES.check_trainer(self)
        self.config = config
        self._calls: set[str] = set()  # methods that are under way
        self._core = ModularCore(self, config)
        allow_loading(config)
        if self._core.seed is not None:
            # for models that a subclass makes in its own __init__
            seed_generators(self._core.seed)

    def __init_subclass__(cls, **options: Any) -> None:
        """Route calls of overridden methods through the core trainer."""
        super().__init_subclass__(**options)
        for name in _WATCHED:
            function = getattr(cls, name)
            if function is not getattr(DreamTrainer, name) and not hasattr(function, "is_watched"):
                setattr(cls, name, _watched(function, name))

    def _overrides(self, name: str) -> bool:
        """Whether a subclass replaced a method of `DreamTrainer`; what is assigned to a trainer is
        not watched."""
        return is_overridden(type(self), name, DreamTrainer)

    # What a trainer is made of

    def configure_models(self) -> Any:
        """Assign models to self, unless `__init__` did. Each is then placed and wrapped."""

    def init_weights(self) -> None:
        """Set the first weights of the models, without gradients; called once, after
        `configure_models`."""

    def configure_optimizers(self) -> Any:
        """Assign optimizers, and schedulers if you like, to self."""
        if not any(isinstance(value, Optimizer) for value in vars(self).values()):
            raise _missing(self, "configure_optimizers()")

    def configure_schedulers(self) -> Any:
        """Assign schedulers to self."""

    def configure_metrics(self) -> Any:
        """Assign metrics that keep their own state, such as those of torchmetrics, to self; steps
        may return them."""

    def configure_dataloaders(self) -> Any:
        """Return `(train_loader, val_loader)`, or one loader; `val_loader` may be None."""
        raise _missing(self, "configure_dataloaders()")

    # Steps and loops

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train on one batch: forward and `self.backward(loss)`. Returns a dict of metrics, the
        loss, or nothing."""
        raise _missing(self, "training_step(batch, batch_idx)")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Measure one batch in eval mode without gradients. Returns metrics, which are averaged
        over all samples."""
        raise _missing(self, "validation_step(batch, batch_idx)")

    def training_loop(self) -> None:
        """Run all epochs. Your own iterates `self.train_loader` once for each epoch from
        `self.current_epoch` on."""
        run = self._core.run
        self._core.user_loop = None
        loop.train(run, partial(loop.train_epoch, run))

    def validation_loop(self) -> Any:
        """Run a whole validation and return its metrics."""
        return self._core.validation.run()

    def should_validate(self) -> bool:
        """Return whether to validate now; called after every epoch, or after every update with
        `val_every_n_steps`."""
        every = self.config.val_every_n_steps
        if self._core.loaders[1] is None:
            return False
        return every is None or self.global_step - self._core.rounds.validated_at >= every

    def compute_metrics(self, outputs: Any, targets: Any) -> Mapping[str, Any]:
        """Return metrics of a batch as a dict. The trainer calls it for steps that return "outputs"
        and "targets"."""
        return {}

    # What steps use

    def backward(
        self, loss: Tensor, optimizer: Optimizer | str | None = None, *, retain_graph: bool = False
    ) -> None:
        """Compute gradients of the loss, scaled and divided as needed; with `optimizer`, for its
        parameters only."""
        self._core.backward(loss, optimizer, retain_graph=retain_graph)

    def step(self, optimizer: Optimizer | str) -> None:
        """Step an optimizer, or the one of that name, with the gradients since the last `step`, at
        the window's end.

        Gradients that the same backward passes left in the parameters of other optimizers are
        dropped before the next backward pass.
        """
        self._core.gradients.step(optimizer)

    def clip_gradients(self, optimizer: Optimizer | str, max_norm: float) -> None:
        """Clip the gradients of an optimizer to this norm right before its step, in place of
        `gradient_clip_val`."""
        check_clipping("max_norm", max_norm)
        self._core.gradients.clip(optimizer, max_norm)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes in the config's precision, for loops of your own;
        steps are in it."""
        return self._core.runtime.autocast

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Place and wrap a model for the processes there are, and return it; a second call changes
        nothing."""
        return self._core.wrap(model)

    def log_metrics(self, metrics: Mapping[str, Any] | None) -> None:
        """Log metrics of the current step, validation or epoch; they are averaged over
        processes."""
        self._core.log_metrics(metrics)

    def stop(self, reason: str = "stop() was called") -> None:
        """End training after the current update."""
        self._core.stop(reason)

    # Running

    def fit(self) -> History:
        """Train until `n_epochs` or `max_steps` and return the history; with `run_dir`, continue an
        earlier run."""
        core = self._core
        with core.run.own_generators():
            core.setup()
            is_validated = any(map(self._overrides, ("validation_step", "validation_loop")))
            if core.loaders[1] is not None and not is_validated:
                raise ConfigurationError(
                    "no-validation-step",
                    "There is a validation loader but no validation_step: override it, or return "
                    "None for the loader.",
                )
            core.events.emit("on_fit_start")
            try:
                run_training(
                    core.run,
                    core.loaders[0],
                    None,
                    RunLimits(epochs=self.config.n_epochs, updates=self.config.max_steps),
                    batch_size=None,
                    resume=self.config.resume,
                    changes=self.config.changes,
                )
            finally:
                core.validation.close()
            core.events.emit("on_fit_end")
            return core.history

    def setup(self) -> None:
        """Call the `configure_*` methods, once; `fit` and the checkpoint methods do it
        themselves."""
        self._core.setup()

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the whole state to a checkpoint directory; a call inside an update waits for its
        end."""
        self._core.save_soon(path)

    def load_checkpoint(self, path: str | Path) -> None:
        """Restore the whole state from a checkpoint directory; `fit` then continues exactly
        there."""
        self._core.load(path)

    # Where the run is

    @property
    def device(self) -> torch.device:
        """The device of models and batches; choose it with `DreamTrainerConfig(device=...)`."""
        return self._core.runtime.device

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self._core.runtime.world

    @property
    def global_rank(self) -> int:
        """The number of this process, from 0."""
        return self._core.runtime.rank

    @property
    def is_distributed(self) -> bool:
        """Whether there are several processes."""
        return self.world_size > 1

    @property
    def history(self) -> History:
        """The metrics so far, by epoch and by step."""
        return self._core.history

    @property
    def current_epoch(self) -> int:
        """The current epoch, from 0; can be assigned."""
        return self._core.progress.epoch

    @current_epoch.setter
    def current_epoch(self, epoch: int) -> None:
        self._core.progress.go_to_epoch(epoch)

    @property
    def global_step(self) -> int:
        """The number of updates so far; all batches of an accumulation window see the same one. Can
        be assigned."""
        return self._core.progress.update

    @global_step.setter
    def global_step(self, update: int) -> None:
        self._core.progress.update = update

    @property
    def train_loader(self) -> Loader | None:
        """The training loader; iterating it is one epoch. Can be assigned."""
        return self._core.train_loader

    @train_loader.setter
    def train_loader(self, loader: Any) -> None:
        self._core.loaders = (loader, self._core.loaders[1])

    @property
    def val_loader(self) -> Loader | None:
        """The validation loader, or None. Can be assigned."""
        return self._core.val_loader

    @val_loader.setter
    def val_loader(self, loader: Any) -> None:
        self._core.loaders = (self._core.loaders[0], loader)


def _missing(trainer: DreamTrainer, method: str) -> ConfigurationError:
    return ConfigurationError(
        "missing-method", f"{type(trainer).__name__} has no {method}: override it."
    )


# Methods whose calls go through one of the core trainer, from any caller.
_WATCHED = {
    "training_step": "take_step",
    "validation_step": "measure",
    "validation_loop": "validation.run_by",
    "save_checkpoint": "save_by",
    "load_checkpoint": "load_by",
}


def _watched(function: F, name: str) -> F:
    """The method, called through the core trainer's unless it is under way already, as where it
    calls super()'s."""
    through = attrgetter(_WATCHED[name])

    @wraps(function)
    def call(self: DreamTrainer, *args: Any, **options: Any) -> Any:
        if name in self._calls:
            return function(self, *args, **options)
        self._calls.add(name)
        try:
            return through(self._core)(partial(function, self), *args, **options)
        finally:
            self._calls.discard(name)

    call.is_watched = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


for _name in ("save_checkpoint", "load_checkpoint"):
    setattr(DreamTrainer, _name, _watched(getattr(DreamTrainer, _name), _name))
