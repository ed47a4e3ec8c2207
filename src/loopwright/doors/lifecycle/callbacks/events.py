"""The events of a run, and the handler that calls callbacks at them."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ....callback import Hook, check_hook_names, hook_names, named_by_class, named_hook
from ....checkpoint import CheckpointStore
from ....checkpoint.manifest import check_inside
from ....errors import ConfigurationError, LoopwrightError
from ..._shared import as_tracker

if TYPE_CHECKING:
    from ....data.open import Stream
    from ....trackers import Track
    from ..trainer import Trainer


class StopTrainingError(LoopwrightError):
    """Raise it in a callback or a method of the trainer to end the training run; it goes no further than that."""


class CallbackNotFoundError(LoopwrightError, TypeError):
    """What was passed as a callback is none."""


class TrainerCallback:
    """Observes a run. Every event comes right after the trainer's method of the same name without `on_`."""

    def why_over(self) -> str | None:
        """Why a run that is resumed has nothing left to train, where this callback had ended it."""
        return None

    def on_init_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called at the end of `Trainer.__init__`; the `__init__` of a subclass may still be running."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training run begins: loaders, run config and scheduler exist."""

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training epoch begins; not again when a run is resumed inside the epoch."""

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each training batch goes through the model."""

    def on_train_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        """Called when the loss of a training batch is computed, before its backward pass.

        `batch_output` is the dict that `calculate_train_batch_loss` returned; its loss is not divided for accumulation.
        A method that takes it also gets `step`, the number of the batch in its epoch, from 0.
        """

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of a training epoch; `train_loss_epoch` is recorded."""

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when an evaluation epoch begins; the model is in eval mode until it ends.

        A method that takes it also gets `is_intermediate`: whether the evaluation is inside a training epoch.
        """

    def on_eval_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each evaluation batch goes through the model."""

    def on_eval_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        """Called when the loss of an evaluation batch is computed."""

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of an evaluation epoch; its loss is recorded.

        The name is `eval_loss_epoch` in training, `evaluation_loss` in `evaluate`, and `intermediate_eval_loss` with
        `is_intermediate`, which a method that takes it gets too.
        """

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after each epoch and its evaluation."""

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training run is over, also if it was stopped."""

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when `evaluate` begins."""

    def on_evaluation_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when `evaluate` is over."""

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a `StopTrainingError` ended a training or evaluation run, before the event of its end."""

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        """The stream that an epoch is to read instead of this one."""
        return stream

    def state_dict(self) -> dict[str, Any]:
        """What a training state must hold for this callback to go on: tensors, numbers, strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


CallbackLike: TypeAlias = "TrainerCallback | type[TrainerCallback] | Track | type[Track]"
EVENTS = hook_names(TrainerCallback)
EXTRA = {  # keywords that an event comes with too, for callbacks that take them
    "on_train_step_end": ("step",),
    "on_eval_epoch_start": ("is_intermediate",),
    "on_eval_epoch_end": ("is_intermediate",),
}


class CallbackHandler:
    """The callbacks in their order, and the events that each of them has a method for."""

    def __init__(self, callbacks: Iterable[CallbackLike]) -> None:
        self.callbacks: list[TrainerCallback] = []
        self._under_way: tuple[str, TrainerCallback] | None = None
        self._hooks: dict[str, list[tuple[TrainerCallback, Hook]]] = {}
        self._bound: list[TrainerCallback] = []
        self.add_callbacks(callbacks)

    def __iter__(self) -> Iterator[TrainerCallback]:
        return iter(self.callbacks)

    @property
    def callback_list(self) -> list[str]:
        """The names of the callbacks' classes, in order."""
        return [type(callback).__name__ for callback in self.callbacks]

    def clear_callbacks(self) -> None:
        self.callbacks = []

    def add_callbacks(self, callbacks: Iterable[CallbackLike]) -> None:
        for callback in callbacks:
            self.add_callback(callback)

    def add_callback(self, callback: CallbackLike) -> None:
        """Add an instance, or a class to make one of; misspelt events and arguments that do not fit are refused."""
        added: object = callback
        if (tracker := as_tracker(callback)) is not None:
            from .reporting import TrackerCallback

            added = TrackerCallback(tracker)
        elif isinstance(callback, type):
            added = callback()  # type: ignore[call-arg]  # of which it is known now that it is no tracker
        if not isinstance(added, TrainerCallback):
            raise CallbackNotFoundError(
                f"{callback!r} is not a callback: pass a subclass of TrainerCallback, or an instance of one, or a "
                "tracker from loopwright.trackers. To profile, use `with Profile(): trainer.train(...)`."
            )
        check_hook_names(added, TrainerCallback, allow_other=True)
        for event in EVENTS:
            _callable_by_name(added, event)
        self.callbacks.append(added)

    def check_resumed(self) -> None:
        """End a run that is resumed after a callback had ended it, before anything of it is trained."""
        for callback in self.callbacks:
            if (reason := callback.why_over()) is not None:
                raise StopTrainingError(reason)

    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call the method of that name of every callback that has it; it may be an event of your own."""
        if self.callbacks != self._bound:  # the list is the user's, too
            self._hooks, self._bound = {}, list(self.callbacks)
        hooks = self._hooks.get(event)
        if hooks is None:
            hooks = self._hooks[event] = self._bind(event)
        if hooks:
            self._call(event, hooks, *args, **kwargs)

    def map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        """Replace the functions that events call."""
        if self.callbacks != self._bound:
            self._hooks, self._bound = {}, list(self.callbacks)
        for event in EVENTS:
            hooks = self._hooks.get(event)
            self._hooks[event] = [(c, function(hook)) for c, hook in (self._bind(event) if hooks is None else hooks)]

    def finish_event(self, event: str, called: Iterable[str], *args: Any, **kwargs: Any) -> None:
        """Call an event of the remaining callbacks, when a run was saved in the middle of it."""
        done = {id(callback) for name, callback in self.named().items() if name in called}
        self._call(event, [(c, hook) for c, hook in self._bind(event) if id(c) not in done], *args, **kwargs)

    def event_under_way(self) -> tuple[str, list[str]] | None:
        """The event that is being called, with the names of its callbacks up to the current one."""
        if self._under_way is None:
            return None
        event, current = self._under_way
        names = {id(callback): name for name, callback in self.named().items()}
        called = [names[id(callback)] for callback, _ in self._hooks[event]]
        return event, called[: called.index(names[id(current)]) + 1]

    def _call(self, event: str, hooks: Iterable[tuple[TrainerCallback, Hook]], *args: Any, **kwargs: Any) -> None:
        before = self._under_way
        try:
            for callback, hook in hooks:
                self._under_way = (event, callback)
                hook(*args, **kwargs)
        finally:
            self._under_way = before

    def named(self) -> dict[str, TrainerCallback]:
        """Callbacks under the names that their state is saved by."""
        return named_by_class(self.callbacks)

    def _bind(self, event: str) -> list[tuple[TrainerCallback, Hook]]:
        if event in EVENTS:
            default = getattr(TrainerCallback, event)
            listening = [c for c in self.callbacks if getattr(type(c), event) is not default]
            return [(c, named_hook(_callable_by_name(c, event), f"{type(c).__name__}.{event}")) for c in listening]
        near = difflib.get_close_matches(event, EVENTS, n=1, cutoff=0.8)
        listening = [c for c in self.callbacks if callable(getattr(c, event, None))]
        if near and not listening:
            raise ConfigurationError(f"Callbacks have no event {event!r}; did you mean {near[0]!r}?")
        return [(c, named_hook(getattr(c, event), f"{type(c).__name__}.{event}")) for c in listening]


def _callable_by_name(callback: TrainerCallback, event: str) -> Hook:
    """The method, taking its arguments by name as events pass them; one with other names gets them by position."""
    method: Hook = getattr(callback, event)
    names = [p for p in inspect.signature(getattr(TrainerCallback, event)).parameters if p not in ("self", "kwargs")]
    names.remove("trainer")
    signature, label = inspect.signature(method), f"{type(callback).__name__}.{event}"
    taken = [*names, *(name for name in EXTRA.get(event, ()) if _takes(signature, name))]
    if _binds(signature, 1, dict.fromkeys(taken)):
        if _takes(signature, "anything else"):
            return method
        return lambda trainer, **kwargs: method(trainer, **{n: v for n, v in kwargs.items() if _takes(signature, n)})
    if _binds(signature, 1 + len(names), {}):
        return lambda trainer, **kwargs: method(trainer, *(kwargs[name] for name in names))
    raise ConfigurationError(
        f"{label} does not take the arguments it is called with: give it (self, {', '.join(['trainer', *names])}, "
        f"**kwargs); it has {signature}."
    )


def _takes(signature: inspect.Signature, name: str) -> bool:
    """Whether a function takes an argument of that name by keyword."""
    kinds = {p.kind for p in signature.parameters.values()}
    return name in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _binds(signature: inspect.Signature, num_positional: int, keywords: dict[str, None]) -> bool:
    try:
        signature.bind(*[None] * num_positional, **keywords)
    except TypeError:
        return False
    return True


SAVED = re.compile(r"(epoch|step)_\d+|final|interrupted|requested")


class SaveTrainingStateCallback(TrainerCallback):
    """Writes training states to directories in `save_dir`, which `train(resume_from=...)` takes.

    They are written every n epochs or training steps, at the end or when a signal ends the run, and when SIGUSR1
    requests one; with `max_checkpoints` only the latest are kept.
    """

    save_dir: Path = Path("training_state")  # values here are for subclasses that do not call `super().__init__()`
    save_every_n_epochs: int | None = None
    save_every_n_steps: int | None = None
    save_at_end: bool = True
    max_checkpoints: int | None = None

    def __init__(
        self,
        save_dir: str | Path = "training_state",
        save_every_n_epochs: int | None = None,
        save_every_n_steps: int | None = None,
        save_at_end: bool = True,
        max_checkpoints: int | None = None,
    ) -> None:
        for name, value in (
            ("save_every_n_epochs", save_every_n_epochs),
            ("save_every_n_steps", save_every_n_steps),
            ("max_checkpoints", max_checkpoints),
        ):
            if value is not None and value < 1:
                raise ConfigurationError(f"SaveTrainingStateCallback({name}={value!r}): use 1 or more, or None.")
        self.save_dir = Path(save_dir)
        self.save_every_n_epochs = save_every_n_epochs
        self.save_every_n_steps = save_every_n_steps
        self.save_at_end = save_at_end
        self.max_checkpoints = max_checkpoints

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        check_inside(self.save_dir, None if trainer._overrides("save_training_state") else SAVED, "save_dir")

    def on_train_step_end(self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        step = trainer._core.progress.step + 1
        if self.save_every_n_steps is not None and step % self.save_every_n_steps == 0:
            trainer._core.after_update(lambda: self.save(trainer, f"step_{step}"))

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        epoch = trainer.run_history.current_epoch
        if self.save_every_n_epochs is not None and epoch % self.save_every_n_epochs == 0:
            self.save(trainer, f"epoch_{epoch}")

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if self.save_at_end:
            self.save(trainer, "final")

    def save_interrupted_run(self, trainer: Trainer) -> None:
        """Called when SIGTERM or SIGINT ends the run after an update, instead of its end."""
        if self.save_at_end:
            self.save(trainer, "interrupted")

    def save_requested_run(self, trainer: Trainer) -> None:
        """Called after the update in which SIGUSR1 came."""
        self.save(trainer, "requested")

    def save(self, trainer: Trainer, name: str) -> None:
        """Write a state under this name, then remove the oldest beyond `max_checkpoints`."""
        trainer.save_training_state(self.save_dir / name)
        if self.max_checkpoints is not None and trainer.run_config.is_world_process_zero:
            CheckpointStore(self.save_dir, keep=self.max_checkpoints).prune()

    @property
    def latest(self) -> Path | None:
        """The newest sound state in `save_dir`, to be passed to `train(resume_from=...)`."""
        found = CheckpointStore(self.save_dir, keep=sys.maxsize).newest()
        return None if found is None else found.path
