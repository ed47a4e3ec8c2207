"""The events of a modular run: `Callback`, and the same events as methods of the trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...callback import Callback as CoreCallback
from ...callback import Dispatch, as_callback, check_hooks, hook_names, named_by_class
from ...training.callback_schedulers import CallbackSchedulers, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from .._shared import InterfaceNames
    from .trainer import DreamTrainer


class Callback:
    """Observes a run; every phase has a start and an end. Only the methods that you override are
    ever called.

    A batch is one call of a step; an update is what comes after every `gradient_accumulation_steps`
    of them, so an average of the weights belongs into `on_update_end`.
    """

    def on_fit_start(self, trainer: DreamTrainer) -> None:
        """Called when `fit` begins: models, optimizers and loaders exist, nothing is restored
        yet."""

    def on_fit_end(self, trainer: DreamTrainer) -> None:
        """Called when `fit` has reached a limit or a stop; not after a signal or an exception."""

    def on_train_start(self, trainer: DreamTrainer) -> None:
        """Called when the training loop begins; a resumed run is restored."""

    def on_train_end(self, trainer: DreamTrainer) -> None:
        """Called after the training loop, ended by a limit, a stop or a signal."""

    def on_epoch_start(self, trainer: DreamTrainer) -> None:
        """Called when an epoch begins; not again when a run is resumed inside the epoch."""

    def on_epoch_end(self, trainer: DreamTrainer, metrics: Mapping[str, float]) -> None:
        """Called after an epoch, its validation and its schedulers; `metrics` is its row in the
        history.

        `current_epoch` is the next one already, so that a checkpoint saved here goes on with that.
        """

    def on_train_epoch_start(self, trainer: DreamTrainer) -> None:
        """Called before the first training batch of an epoch."""

    def on_train_epoch_end(self, trainer: DreamTrainer) -> None:
        """Called after the last training batch of an epoch, before its validation."""

    def on_train_batch_start(self, trainer: DreamTrainer, batch: Any, batch_idx: int) -> None:
        """Called before each `training_step`."""

    def on_train_batch_end(
        self, trainer: DreamTrainer, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after each `training_step`; `outputs` is what it returned."""

    def on_optimizer_step_start(self, trainer: DreamTrainer, optimizer: str) -> None:
        """Called before clipping and stepping the named optimizer; its gradients are complete and
        unscaled."""

    def on_optimizer_step_end(self, trainer: DreamTrainer, optimizer: str) -> None:
        """Called after the step of the named optimizer; its gradients are reset."""

    def on_update_start(self, trainer: DreamTrainer) -> None:
        """Called before the first batch of each accumulation window."""

    def on_update_end(self, trainer: DreamTrainer) -> None:
        """Called after each accumulation window with all its optimizer steps."""

    def on_validation_start(self, trainer: DreamTrainer) -> None:
        """Called when a validation begins; models are in eval mode until it ends."""

    def on_validation_end(self, trainer: DreamTrainer, metrics: Mapping[str, float]) -> None:
        """Called after a validation; `metrics` are its means over all processes."""

    def on_validation_batch_start(self, trainer: DreamTrainer, batch: Any, batch_idx: int) -> None:
        """Called before each `validation_step`."""

    def on_validation_batch_end(
        self, trainer: DreamTrainer, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after each `validation_step`; `outputs` is what it returned."""

    def on_save_start(self, trainer: DreamTrainer, path: str | Path) -> None:
        """Called before `save_checkpoint`."""

    def on_save_end(self, trainer: DreamTrainer, path: str | Path) -> None:
        """Called after `save_checkpoint`, when all processes have written their part."""

    def on_load_start(self, trainer: DreamTrainer, path: str | Path) -> None:
        """Called before `load_checkpoint`."""

    def on_load_end(self, trainer: DreamTrainer, path: str | Path) -> None:
        """Called after `load_checkpoint`, on all processes."""

    def on_exception(self, trainer: DreamTrainer, error: BaseException) -> None:
        """Called when an exception leaves `fit`; it is raised again afterwards."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for this callback to go on exactly: tensors, numbers,
        strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Hooks:
    """The same events as methods of the trainer itself, without the argument `trainer`; they come
    before the callbacks'."""


def _without_trainer(event: str) -> Callable[..., None]:
    def hook(self: Hooks, *args: Any) -> None: ...

    signature = inspect.signature(getattr(Callback, event))
    kept = [one for name, one in signature.parameters.items() if name != "trainer"]
    hook.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return hook


for _event in hook_names(Callback):
    setattr(Hooks, _event, _without_trainer(_event))


class States(CoreCallback):
    """The trainer's own hooks and the interface's callbacks, as one callback of the core.

    It calls their events at the moments of the core's, and keeps the callbacks' states. Checkpoints
    hold these under the name of this class, which is part of their format.

    Args:
        callbacks: The interface's callbacks.
        events: The functions of each event of the interface.
        relayed: The core's events, each with the interface's that have the same arguments.
    """

    def __init__(
        self,
        callbacks: Iterable[Callback],
        events: Dispatch,
        relayed: Mapping[str, Sequence[str]],
    ) -> None:
        self.callbacks = named_by_class(callbacks)
        self.events = events
        self.held = CallbackSchedulers()  # until the core trainer has its run
        self._update = (0, -1)  # the call and update that have begun
        for event, names in relayed.items():
            self._relay(event, names, partial(self._emit, names))
        batch_starts = ("on_update_start", "on_train_batch_start")
        self._relay("on_train_step_start", batch_starts, self._begin_batch)
        self._relay("on_train_step_end", ("on_train_batch_end",), self._end_batch)

    def _relay(self, event: str, names: Iterable[str], function: Callable[..., None]) -> None:
        """Have a hook for an event of the core, if anything listens to those of the interface."""
        if any(self.events.hooks[name] for name in names):
            setattr(self, event, function)

    def _emit(self, names: Iterable[str], trainer: Any, *args: Any) -> None:
        for name in names:
            self.events.emit(name, *args)

    def _begin_batch(self, trainer: Any, batch: Any) -> None:
        run = trainer.run
        update = (run.call.number, run.progress.update)
        if update != self._update:
            self._update = update
            self.events.emit("on_update_start")
        self.events.emit("on_train_batch_start", batch, run.progress.epoch_step)

    def _end_batch(self, trainer: Any, batch: Any, result: Any) -> None:
        index = trainer.run.progress.epoch_step - 1
        self.events.emit("on_train_batch_end", trainer.outputs, batch, index)

    @property
    def _users_objects(self) -> Collection[object]:
        return self.callbacks.values()

    def state_dict(self) -> dict[str, Any]:
        return {name: state_of(callback) for name, callback in self.callbacks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, callback in self.callbacks.items():
            if name in state:
                self.held.load(callback, state[name])


def sort_callbacks(
    given: Iterable[Any], names: InterfaceNames
) -> tuple[list[Callback], list[CoreCallback]]:
    """The interface's callbacks, checked, and those of the core, which plain functions are, too."""
    own: list[Callback] = []
    core: list[CoreCallback] = []
    for callback in given:
        made = callback() if isinstance(callback, type) else callback
        if isinstance(made, Callback):
            check_hooks(made, Callback)
            names.check_callback(made)
            own.append(made)
        else:
            core.append(as_callback(made))
    return own, core
