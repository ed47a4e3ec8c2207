"""The events of a run: `TrainerCallback`, its errors, and the handler that calls callbacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from ...callback import Hook, check_hook_names, hook_names, named_by_class, named_hook
from ...errors import ConfigurationError, LoopwrightError
from ...text import near_names
from .._shared import as_tracker, tracked
from .tracking import num_recorded, only_numbers, values_since

if TYPE_CHECKING:
    from ...data.open import Stream
    from ...trackers import Track
    from .trainer import Trainer

CallbackLike: TypeAlias = "TrainerCallback | type[TrainerCallback] | Track | type[Track]"


class StopTrainingError(LoopwrightError):
    """Raise it in a callback or a method of the trainer to end the training run; it goes no further
    than that."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class CallbackNotFoundError(LoopwrightError, TypeError):
    """What was passed as a callback is none."""


class TrainerCallback:
    """Observes a run. Every event comes right after the trainer's method of the same name without
    `on_`."""

    def why_over(self) -> str | None:
        """Why a run that is resumed has nothing left to train, where this callback had ended it."""
        return None

    def on_init_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called at the end of `Trainer.__init__`; the `__init__` of a subclass may still be
        running."""

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training run begins: loaders, run config and scheduler exist."""

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when a training epoch begins; not again when a run is resumed inside the epoch."""

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each training batch goes through the model."""

    def on_train_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        """Called when the loss of a training batch is computed, before its backward pass.

        `batch_output` is the dict that `calculate_train_batch_loss` returned; its loss is not
        divided for accumulation. A method that takes it also gets `step`, the number of the batch
        in its epoch, from 0.
        """

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of a training epoch; `train_loss_epoch` is recorded."""

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called when an evaluation epoch begins; the model is in eval mode until it ends.

        A method that takes it also gets `is_intermediate`: whether the evaluation is inside a
        training epoch.
        """

    def on_eval_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called before each evaluation batch goes through the model."""

    def on_eval_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        """Called when the loss of an evaluation batch is computed."""

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Called after the last batch of an evaluation epoch; its loss is recorded.

        The name is `eval_loss_epoch` in training, `evaluation_loss` in `evaluate`, and
        `intermediate_eval_loss` with `is_intermediate`, which a method that takes it gets too.
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
        """Called when a `StopTrainingError` ended a training or evaluation run, before the event of
        its end."""

    def adapt_stream(self, stream: Stream, *, is_training: bool, is_intermediate: bool) -> Stream:
        """The stream that an epoch is to read instead of this one."""
        return stream

    def state_dict(self) -> dict[str, Any]:
        """What a training state must hold for this callback to go on: tensors, numbers, strings,
        lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class TrackerCallback(TrainerCallback):
    """Lets a tracker of `loopwright.trackers` follow the runs: the losses of steps, and the metrics
    of the history.

    A tracker among the callbacks is wrapped in one. Metrics of an epoch are sent together at its
    end, and those of an evaluation inside an epoch when it ends.
    """

    def __init__(self, tracker: Track) -> None:
        self.tracker = tracker
        self._num_sent: dict[str, int] = {}
        self._following: AbstractContextManager[None] = nullcontext()
        self._is_stopped = False

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        core = trainer._core
        self._num_sent = num_recorded(trainer.run_history)
        self._is_stopped = False
        self._following = tracked(core.run, [self.tracker])
        self._following.__enter__()
        event, called = core.resumed_event or ("", [])
        names = {id(callback): name for name, callback in trainer.callback_handler.named().items()}
        # the row of the epoch that is not over yet
        is_sent = event == "on_training_run_epoch_end" and names[id(self)] in called
        self.tracker.begin(core, core.progress.epoch + is_sent)

    def on_eval_epoch_end(
        self, trainer: Trainer, is_intermediate: bool = False, **kwargs: Any
    ) -> None:
        if is_intermediate:
            trainer._core.run.flush()  # trackers want steps in their order
            self.on_training_run_epoch_end(trainer)

    def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Send the metrics that are new in the history."""
        history = trainer.run_history
        new = values_since(history, self._num_sent)
        self._num_sent = num_recorded(history)
        if new:
            self.tracker.log_epoch(trainer._core, history.current_epoch, only_numbers(new))

    on_evaluation_run_end = on_training_run_epoch_end

    def on_stop_training_error(self, trainer: Trainer, **kwargs: Any) -> None:
        self._is_stopped = True

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.on_training_run_epoch_end(trainer)
        self.tracker.finish("stopped" if self._is_stopped else "finished")
        self._leave()

    def on_evaluation_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._num_sent = num_recorded(trainer.run_history)

    def run_failed(self, trainer: Trainer, error: BaseException) -> None:
        """Called when an exception, or a signal, ends the run."""
        self.tracker.on_exception(trainer._core, error)
        self._leave()

    def state_dict(self) -> dict[str, Any]:
        return {"num_logged": self._num_sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_sent = dict(state["num_logged"])

    def _leave(self) -> None:
        following = self._following
        self._following = nullcontext()
        following.__exit__(None, None, None)


EVENTS = hook_names(TrainerCallback)
# arguments of events besides the trainer
ARGUMENTS = {
    "on_train_step_end": ("batch", "batch_output"),
    "on_eval_step_end": ("batch", "batch_output"),
}
# keywords of events, for callbacks that take them
EXTRA = {
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
        """Add an instance, or a class to make one of; misspelt events and arguments that do not fit
        are refused."""
        added: object = callback
        if (tracker := as_tracker(callback)) is not None:
            added = TrackerCallback(tracker)
        elif isinstance(callback, type):
            added = callback()  # type: ignore[call-arg]  # no tracker, which may need arguments
        if not isinstance(added, TrainerCallback):
            raise CallbackNotFoundError(
                "not-a-callback",
                f"{callback!r} is not a callback: pass a subclass of TrainerCallback, or an "
                "instance of one, or a tracker from loopwright.trackers. To profile, use `with "
                "Profile(): trainer.train(...)`.",
            )
        check_hook_names(added, TrainerCallback, allow_other=True)
        for event in EVENTS:
            _called_by_name(added, event)
        self.callbacks.append(added)

    def named(self) -> dict[str, TrainerCallback]:
        """Callbacks under the names that their state is saved by."""
        return named_by_class(self.callbacks)

    def why_over(self) -> str | None:
        """What the first callback that has ended the run, and knows it, says of that."""
        reasons = (callback.why_over() for callback in self.callbacks)
        return next((reason for reason in reasons if reason is not None), None)

    def call_event(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call the method of that name of every callback that has it; it may be an event of your
        own."""
        hooks = self._hooks_of(event)
        if hooks:
            self._call(event, hooks, *args, **kwargs)

    def map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        """Replace the functions that events call."""
        for event in EVENTS:
            hooks = [(callback, function(hook)) for callback, hook in self._hooks_of(event)]
            self._hooks[event] = hooks

    def finish_event(self, event: str, called: Iterable[str], *args: Any, **kwargs: Any) -> None:
        """Call an event of the remaining callbacks, when a run was saved in the middle of it."""
        done = {id(callback) for name, callback in self.named().items() if name in called}
        hooks = [(one, hook) for one, hook in self._hooks_of(event) if id(one) not in done]
        self._call(event, hooks, *args, **kwargs)

    def event_under_way(self) -> tuple[str, list[str]] | None:
        """The event that is being called, with the names of its callbacks up to the current one."""
        if self._under_way is None:
            return None
        event, current = self._under_way
        names = {id(callback): name for name, callback in self.named().items()}
        called = [names[id(callback)] for callback, _ in self._hooks[event]]
        return event, called[: called.index(names[id(current)]) + 1]

    def _hooks_of(self, event: str) -> list[tuple[TrainerCallback, Hook]]:
        if self.callbacks != self._bound:  # the list is the user's, too
            self._hooks = {}
            self._bound = list(self.callbacks)
        if event not in self._hooks:
            self._hooks[event] = self._bind(event)
        return self._hooks[event]

    def _bind(self, event: str) -> list[tuple[TrainerCallback, Hook]]:
        default = getattr(TrainerCallback, event, None)
        listening = [c for c in self.callbacks if callable(getattr(c, event, None))]
        if default is None:
            near = [] if listening else near_names(event, EVENTS, cutoff=0.8)
            if near:
                raise ConfigurationError(
                    "unknown-event", f"Callbacks have no event {event!r}; did you mean {near[0]}?"
                )
            methods = [getattr(callback, event) for callback in listening]
        else:
            listening = [c for c in listening if getattr(type(c), event) is not default]
            methods = [_called_by_name(callback, event) for callback in listening]
        return [
            (callback, named_hook(method, f"{type(callback).__name__}.{event}"))
            for callback, method in zip(listening, methods, strict=True)
        ]

    def _call(
        self, event: str, hooks: Iterable[tuple[TrainerCallback, Hook]], *args: Any, **kwargs: Any
    ) -> None:
        before = self._under_way
        try:
            for callback, hook in hooks:
                self._under_way = (event, callback)
                hook(*args, **kwargs)
        finally:
            self._under_way = before


def _called_by_name(callback: TrainerCallback, event: str) -> Hook:
    """The method of an event, given the keywords that it takes; one with other names for its
    arguments gets them by position."""
    method: Hook = getattr(callback, event)
    signature = inspect.signature(method)
    parameters = signature.parameters
    names = ARGUMENTS.get(event, ())
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        if _binds(signature, (None,), (*names, *EXTRA.get(event, ()))):
            return method
    elif _binds(
        signature, (None,), [*names, *(x for x in EXTRA.get(event, ()) if x in parameters)]
    ):
        return lambda trainer, **kwargs: method(
            trainer, **{name: value for name, value in kwargs.items() if name in parameters}
        )
    if _binds(signature, (None, *names), ()):
        return lambda trainer, **kwargs: method(trainer, *(kwargs[name] for name in names))
    raise ConfigurationError(
        "event-arguments",
        f"{type(callback).__name__}.{event} does not take the arguments it is called with: give it "
        f"(self, {', '.join(['trainer', *names])}, **kwargs); it has {signature}.",
    )


def _binds(signature: inspect.Signature, args: Iterable[None], names: Iterable[str]) -> bool:
    try:
        signature.bind(*args, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
