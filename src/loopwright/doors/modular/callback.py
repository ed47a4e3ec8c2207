"""The events of a modular run: `Callback`, and the same events as methods of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...callback import Callback as CoreCallback
from ...callback import check_hooks
from ...errors import ConfigurationError, check_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from .trainer import DreamTrainer


class Callback:
    """Observes a run; every phase has a start and an end. Only the methods that you override are ever called.

    A batch is one call of a step; an update is what comes after every `gradient_accumulation_steps` of them, so an
    average of the weights belongs into `on_update_end`.
    """

    def on_fit_start(self, trainer: DreamTrainer) -> None:
        """`fit` begins; models, optimizers and loaders are there, nothing is restored yet."""

    def on_fit_end(self, trainer: DreamTrainer) -> None:
        """`fit` has done what it was asked to; not called when a signal or an exception ended it."""

    def on_train_start(self, trainer: DreamTrainer) -> None:
        """The training loop begins; when a run is resumed, it is restored."""

    def on_train_end(self, trainer: DreamTrainer) -> None:
        """The training loop was left, by a limit, a stop or a signal."""

    def on_epoch_start(self, trainer: DreamTrainer) -> None:
        """An epoch begins (not again when a run is resumed inside one)."""

    def on_epoch_end(self, trainer: DreamTrainer, metrics: Mapping[str, float]) -> None:
        """An epoch is over, validation and schedulers included; `metrics` is its row in the history.

        `current_epoch` is the next one already, so that a checkpoint saved here goes on with that.
        """

    def on_train_epoch_start(self, trainer: DreamTrainer) -> None:
        """The training batches of an epoch begin."""

    def on_train_epoch_end(self, trainer: DreamTrainer) -> None:
        """The training batches of an epoch are through; its validation, if there is one, comes next."""

    def on_train_batch_start(self, trainer: DreamTrainer, batch: Any, batch_idx: int) -> None:
        """A batch is about to go through `training_step`."""

    def on_train_batch_end(self, trainer: DreamTrainer, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch went through `training_step`, which returned `outputs`."""

    def on_optimizer_step_start(self, trainer: DreamTrainer, optimizer: str) -> None:
        """The named optimizer's gradients are complete and unscaled; clipping and its step come next."""

    def on_optimizer_step_end(self, trainer: DreamTrainer, optimizer: str) -> None:
        """The named optimizer was stepped and its gradients are gone."""

    def on_update_start(self, trainer: DreamTrainer) -> None:
        """The first batch of an accumulation window is about to come."""

    def on_update_end(self, trainer: DreamTrainer) -> None:
        """An accumulation window is over, and with it every optimizer step in it."""

    def on_validation_start(self, trainer: DreamTrainer) -> None:
        """A validation begins; models are in eval mode until it ends."""

    def on_validation_end(self, trainer: DreamTrainer, metrics: Mapping[str, float]) -> None:
        """A validation is over; `metrics` is what it measured, over all processes."""

    def on_validation_batch_start(self, trainer: DreamTrainer, batch: Any, batch_idx: int) -> None:
        """A batch is about to go through `validation_step`."""

    def on_validation_batch_end(self, trainer: DreamTrainer, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch went through `validation_step`, which returned `outputs`."""

    def on_save_start(self, trainer: DreamTrainer, path: str | Path) -> None:
        """`save_checkpoint` was called."""

    def on_save_end(self, trainer: DreamTrainer, path: str | Path) -> None:
        """The checkpoint is written, by all processes."""

    def on_load_start(self, trainer: DreamTrainer, path: str | Path) -> None:
        """`load_checkpoint` was called."""

    def on_load_end(self, trainer: DreamTrainer, path: str | Path) -> None:
        """The checkpoint is loaded, by all processes."""

    def on_exception(self, trainer: DreamTrainer, error: BaseException) -> None:
        """An exception is leaving `fit`; it is raised again afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for this callback to go on exactly: tensors, numbers, strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Hooks:
    """The same events as methods of the trainer itself, which come before the callbacks'; see `Callback`."""

    def on_fit_start(self) -> None: ...

    def on_fit_end(self) -> None: ...

    def on_train_start(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_epoch_start(self) -> None: ...

    def on_epoch_end(self, metrics: Mapping[str, float]) -> None: ...

    def on_train_epoch_start(self) -> None: ...

    def on_train_epoch_end(self) -> None: ...

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None: ...

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def on_optimizer_step_start(self, optimizer: str) -> None: ...

    def on_optimizer_step_end(self, optimizer: str) -> None: ...

    def on_update_start(self) -> None: ...

    def on_update_end(self) -> None: ...

    def on_validation_start(self) -> None: ...

    def on_validation_end(self, metrics: Mapping[str, float]) -> None: ...

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None: ...

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def on_save_start(self, path: str | Path) -> None: ...

    def on_save_end(self, path: str | Path) -> None: ...

    def on_load_start(self, path: str | Path) -> None: ...

    def on_load_end(self, path: str | Path) -> None: ...

    def on_exception(self, error: BaseException) -> None: ...


class EpochFunction(Callback):
    """A plain function as a callback: called as `function(trainer, metrics)` at the end of every epoch."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        check_arguments(function, ("trainer", "metrics"), f"Callback function {self.name}")

    def on_epoch_end(self, trainer: DreamTrainer, metrics: Mapping[str, float]) -> None:
        self.function(trainer, metrics)


class States(CoreCallback):
    """The states of the door's callbacks, as part of the core's checkpoints."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            base = name = type(callback).__name__
            number = 1
            while name in self.callbacks:
                number += 1
                name = f"{base}-{number}"
            self.callbacks[name] = callback

    def state_dict(self) -> dict[str, Any]:
        return {name: callback.state_dict() for name, callback in self.callbacks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, callback in self.callbacks.items():
            if name in state:
                callback.load_state_dict(state[name])


def sort_callbacks(given: Iterable[Any]) -> tuple[list[Callback], list[CoreCallback]]:
    """The door's callbacks, checked, and those of `loopwright.callbacks`, which the core knows how to treat."""
    own: list[Callback] = []
    core: list[CoreCallback] = []
    for callback in given:
        made = callback() if isinstance(callback, type) else callback
        if isinstance(made, CoreCallback):
            core.append(made)
        elif isinstance(made, Callback):
            check_hooks(made, Callback)
            own.append(made)
        elif callable(made):
            own.append(EpochFunction(made))
        else:
            raise ConfigurationError(
                f"{callback!r} is not a callback: pass a Callback of this module or of loopwright.callbacks, or a "
                "function of (trainer, metrics)."
            )
    return own, core
