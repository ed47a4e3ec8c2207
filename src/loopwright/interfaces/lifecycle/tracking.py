"""Who follows a run: its history (named series of values), its callbacks, and the handler that calls
them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from ...callback import Hook, check_hook_names, hook_names, named_by_class, named_hook
from ...errors import ConfigurationError, LoopwrightError, check_arguments
from ...text import nearest
from .._shared import as_tracker

if TYPE_CHECKING:
    from ...data.open import Stream
    from ...trackers import Track
    from .trainer import Trainer

CallbackLike: TypeAlias = "TrainerCallback | type[TrainerCallback] | Track | type[Track]"


class RunHistory(ABC):
    """Where metrics go. Subclass it to keep them elsewhere; `state_dict` makes them part of a
    training state."""

    @abstractmethod
    def get_metric_names(self) -> Iterable[str]:
        """The names of all metrics that have been recorded."""

    @abstractmethod
    def get_metric_values(self, metric_name: str) -> Iterable[Any]:
        """All values of a metric, oldest first."""

    @abstractmethod
    def get_latest_metric(self, metric_name: str) -> Any:
        """The value of a metric that was recorded last."""

    @abstractmethod
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value under this name, with the prefix in front of it."""

    def delete_metric(self, metric_name: str) -> None:
        """Delete a metric with all its values."""
        raise NotImplementedError

    @property
    def metric_name_prefix(self) -> str:
        """The prefix of the names under which metrics are recorded."""
        return ""

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Change the prefix; without an argument there is none."""
        if prefix:
            raise ConfigurationError(
                "no-metric-prefix",
                f"{type(self).__name__} does not support a prefix for metric names, so metrics "
                f"with the prefix {prefix!r} would be mixed up with others: add "
                "`set_metric_name_prefix(prefix)` and `metric_name_prefix`.",
            )

    @property
    @abstractmethod
    def current_epoch(self) -> int:
        """The number of the epoch under way, counted from 1."""

    @abstractmethod
    def _increment_epoch(self) -> None:
        """Go to the next epoch."""

    @abstractmethod
    def reset(self) -> None:
        """Delete all values and go back to epoch 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a training state must keep of this history. Default: nothing."""
        return {}

    # a history may keep nothing
    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what `state_dict` returned."""


class InMemoryRunHistory(RunHistory):
    """Keeps everything in lists. Tensors are kept on their device, without their graph."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._metrics: defaultdict[str, list[Any]] = defaultdict(list)
        self._current_epoch = 1
        self._prefix = ""

    def get_metric_names(self) -> set[str]:
        return set(self._metrics)

    def get_metric_values(self, metric_name: str) -> list[Any]:
        if metric_name in self._metrics:
            return list(self._metrics[metric_name])
        raise ConfigurationError(
            "unknown-run-metric",
            f"No values have been recorded for the metric {metric_name!r}; "
            f"{nearest(metric_name, self._metrics)}",
        )

    def get_latest_metric(self, metric_name: str) -> Any:
        return self.get_metric_values(metric_name)[-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        value = metric_value.detach() if isinstance(metric_value, Tensor) else metric_value
        self._metrics[self._prefix + metric_name].append(value)

    def delete_metric(self, metric_name: str) -> None:
        del self._metrics[metric_name]

    @property
    def metric_name_prefix(self) -> str:
        return self._prefix

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        self._prefix = prefix

    @property
    def current_epoch(self) -> int:
        return self._current_epoch

    def _increment_epoch(self) -> None:
        self._current_epoch += 1

    def state_dict(self) -> dict[str, Any]:
        metrics = {name: list(values) for name, values in self._metrics.items()}
        return {"metrics": metrics, "epoch": self._current_epoch, "prefix": self._prefix}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reset()
        for name, values in state["metrics"].items():
            self._metrics[name] = list(values)
        self._current_epoch = state["epoch"]
        self._prefix = state["prefix"]


def num_recorded(history: RunHistory) -> dict[str, int]:
    """How many values of each metric a history has: the position of one who reads it."""
    return {name: len(list(history.get_metric_values(name))) for name in history.get_metric_names()}


def values_since(history: RunHistory, before: Mapping[str, int]) -> dict[str, Any]:
    """The latest values of the metrics that were recorded since a position, by name."""
    counts = sorted(num_recorded(history).items())
    new = [name for name, count in counts if count != before.get(name, 0)]
    return {name: history.get_latest_metric(name) for name in new}


def only_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, as trackers and records of runs take them."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    }


class LossTracker:
    """Adds up losses, each of them the mean of a batch; for an epoch of the user's own.

    `is_reported` says that the steps of this epoch reported their losses to the run, which adds
    them up itself.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.loss_value = 0.0
        self.total_loss = 0.0
        self.running_count = 0
        self.is_reported = False

    def update(self, loss_batch_value: float, batch_size: int = 1) -> None:
        self.loss_value = loss_batch_value
        self.total_loss += loss_batch_value * batch_size
        self.running_count += batch_size

    @property
    def average(self) -> float:
        """The mean over all samples so far; 0 without any."""
        return self.total_loss / self.running_count if self.running_count else 0.0


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
    """A tracker of `loopwright.trackers` among the callbacks: it follows the steps of training runs,
    and gets the metrics of the history.

    Metrics of an epoch are sent together at its end, and those of an evaluation inside an epoch
    when it ends.
    """

    def __init__(self, tracker: Track) -> None:
        self.tracker = tracker


EVENTS = hook_names(TrainerCallback)
# what events are called with besides the trainer, each by its name
ARGUMENTS = {
    "on_train_step_end": ("batch", "batch_output", "step"),
    "on_eval_step_end": ("batch", "batch_output"),
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
            _hook(added, event)
        self.callbacks.append(added)

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

    def finish_event(self, event: str, called: Iterable[str], trainer: Trainer) -> None:
        """Call an event of the remaining callbacks, when a run was saved in the middle of it."""
        named = named_by_class(self.callbacks)
        done = [named[name] for name in called if name in named]
        self._call(event, [pair for pair in self._hooks_of(event) if pair[0] not in done], trainer)

    def event_under_way(self) -> tuple[str, list[str]] | None:
        """The event that is being called, with the names of its callbacks up to the current one."""
        if self._under_way is None:
            return None
        event, current = self._under_way
        callbacks = [callback for callback, _ in self._hooks[event]]
        called = callbacks[: callbacks.index(current) + 1]
        return event, [
            name for name, callback in named_by_class(self.callbacks).items() if callback in called
        ]

    def _hooks_of(self, event: str) -> list[tuple[TrainerCallback, Hook]]:
        if self.callbacks != self._bound:  # the list is the user's, too
            self._hooks = {}
            self._bound = list(self.callbacks)
        if event not in self._hooks:
            default = getattr(TrainerCallback, event, None)
            listening = [
                one
                for one in self.callbacks
                if callable(method := getattr(one, event, None))
                and getattr(method, "__func__", method) is not default
            ]
            self._hooks[event] = [(one, _hook(one, event)) for one in listening]
        return self._hooks[event]

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


def _hook(callback: TrainerCallback, event: str) -> Hook:
    """The method of an event, given the arguments that it takes."""
    method: Hook = getattr(callback, event)
    label = f"{type(callback).__name__}.{event}"
    names = ARGUMENTS.get(event, ())
    parameters = inspect.signature(method).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if event in EVENTS:
        taken = [name for name in names if takes_all or name in parameters]
        arguments = ["trainer", *(f"{name}=" for name in taken)]
        wanted = ", ".join(["self", "trainer", *names[:2], "**kwargs"])
        check_arguments(method, arguments, label, f" Write `def {event}({wanted})`.")
    if takes_all or event not in EVENTS:
        return named_hook(method, label)

    def call(trainer: Trainer, **kwargs: Any) -> None:
        method(trainer, **{name: value for name, value in kwargs.items() if name in parameters})

    return named_hook(call, label)
