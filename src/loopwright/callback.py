"""The events of a run: `Callback`, the checks of its methods, and the dispatch that is prepared
once per run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import CheckpointError, ConfigurationError, check_arguments
from .text import near_names, nearest

if TYPE_CHECKING:
    from .checkpoint import AsyncWriter
    from .data.open import Stream
    from .metrics.best import WatchedMetric
    from .metrics.media import Media
    from .metrics.result import StepResult
    from .metrics.rows import StepRow

    # callbacks import the type from here: the one import that points up
    from .trainer import (
        Trainer as Trainer,
    )

Hook = Callable[..., None]
T = TypeVar("T")
# the callbacks in whose block (`with Profile():`) the code runs: every run that starts there has them
surrounding: ContextVar[tuple[Callback, ...]] = ContextVar("surrounding", default=())


class Callback:
    """Base class of objects that observe a run: override the `on_*` methods that you need.

    The trainer has hooks of the same names, without the `trainer` argument; they run before those
    of the callbacks. Callbacks are called in the order in which they were given. They may read the
    trainer, log metrics with `trainer.log` and `trainer.log_step`, and end training with
    `trainer.stop(reason)`.

    Example:
        >>> import torch
        >>> from loopwright import Callback, Trainer
        >>> class StopBelow(Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...
        ...     def on_epoch_end(self, trainer, metrics):
        ...         if metrics["loss"] < self.loss:
        ...             trainer.stop(f"the loss is below {self.loss}")
        >>> x, model = torch.ones(8, 1), torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = Trainer(model, optimizer, torch.nn.MSELoss(), callbacks=StopBelow(1e-3), progress="silent")
        >>> len(trainer.train((x, x), num_epochs=1000)) < 1000
        True
    """

    # whether it evaluates in `on_eval_end` and logs the results under names of its own
    evaluates_again = False
    # events for which the class has a method that this object does not need
    ignored_events: Collection[str] = ()
    # of the state that `state_dict` returns; raise it with a change, and override `migrate_state`
    state_version = 1
    # callbacks with a higher one are called later, in whichever order they were given
    precedence = 0

    def on_train_start(self, trainer: Trainer) -> None:
        """Called once per `train` call, before the first step: models are built and, when resuming,
        restored."""

    def on_epoch_start(self, trainer: Trainer) -> None:
        """Called before the first step of an epoch; not again when a run is resumed inside the
        epoch."""

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        """Called before each `train_step`, with the batch that `prepare_batch` returned."""

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        """Called after each `train_step`, with its batch and result. `trainer.log_step` adds
        metrics to the step.

        Reading a value of `result` here makes every step wait for the device; `on_log` gets the
        values without that.
        """

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        """Called before the named optimizer's step, and before clipping: `param.grad` is complete
        and unscaled."""

    def on_update_end(self, trainer: Trainer) -> None:
        """Called after each accumulation window with all its optimizer steps. Checkpoints are saved
        here."""

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        """Called when step metrics were read from the device, with one row for each step since the
        last call.

        A row has the metrics (`row["loss"]`) and their place in the run (`row.step`, `row.update`,
        `row.epoch`, `row.samples`, `row.seconds`).
        """

    def on_media(self, trainer: Trainer, media: Media) -> None:
        """Called when `trainer.log_image`, `log_histogram`, `log_text` or `log_table` logged
        something."""

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Called after the last step of an epoch, before its evaluation. `trainer.log` adds to the
        epoch's row."""

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after an epoch and its evaluation, with the epoch's row of the history, which is
        complete."""

    def on_loop_end(self, trainer: Trainer) -> None:
        """Called after the last update, if a limit, a stop or a signal ended training. The last
        checkpoint is saved."""

    def on_train_end(self, trainer: Trainer) -> None:
        """Called at the end of a `train` call that reached a limit or a stop; not after a signal or
        an exception."""

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        """Called before an evaluation, with the stream of its batches. The models are in eval
        mode."""

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        """Called after each `eval_step`, with its batch and result."""

    def on_eval_log(self, trainer: Trainer, data: Stream, num_batches: int) -> None:
        """Called a few times a second during an evaluation, with the number of its batches so far,
        and once after it.

        The last call comes after `on_eval_end`, when the models are back in their modes;
        `trainer.log` adds to the results of an evaluation no more.
        """

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        """Called after the last batch of an evaluation; `trainer.log` adds to the results of this
        evaluation."""

    def on_rewind(self, trainer: Trainer) -> None:
        """Called after training returned to an earlier update of this epoch: discard what was
        collected since then."""

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """Called when an exception leaves `train`; it is raised again afterwards."""

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        """Return the stream to read in place of this one, in training or evaluation."""
        return stream

    def metric_names(self, known: set[str]) -> set[str]:
        """Return the names of epoch metrics that this callback adds to the `known` ones with
        `trainer.log`."""
        return set()

    def eval_streams(self, trainer: Trainer) -> Mapping[str, Stream]:
        """Return the data that this callback evaluates by itself, by the prefix of the metrics'
        names."""
        return {}

    def finish_again(self, trainer: Trainer) -> None:
        """Called instead of training where an earlier process finished this run: leave the models
        as its end did."""

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        """Start writing files that the next resume point needs; it is completed after these writers
        are."""
        return ()

    def watched_metrics(self) -> Iterable[WatchedMetric]:
        """Return the metrics whose best values this callback needs; their modes are checked before
        the first step."""
        return ()

    def required_metrics(self) -> set[str]:
        """Return the names of epoch metrics that this callback needs; checked before the first
        step."""
        return set()

    @property
    def has_own_state(self) -> bool:
        """Whether this callback has a `state_dict` of its own; without one, metrics among its
        attributes are saved."""
        return type(self).state_dict is not Callback.state_dict

    @property
    def _users_objects(self) -> Collection[object]:
        """The objects with a `state_dict` of users whose states this callback saves: loading does
        not call it."""
        return (self,) if has_users_state(self) else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves for an exact resume: tensors, numbers, strings,
        lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""

    def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Turn a state that an earlier version of this class saved into one that `load_state_dict`
        takes.

        Called before `load_state_dict` where a checkpoint has a lower `state_version` than the
        class. A checkpoint with a higher one is refused.

        Args:
            state: What `state_dict` returned when the checkpoint was saved.
            version: The `state_version` that the class had then; 1 where it stated none.

        Returns:
            The state in the form of today's `state_dict`.

        Example:
            >>> from loopwright import Callback
            >>> class Samples(Callback):
            ...     state_version = 2  # version 1 counted batches, of 32 samples each
            ...     num_samples = 0
            ...
            ...     def state_dict(self):
            ...         return {"num_samples": self.num_samples}
            ...
            ...     def load_state_dict(self, state):
            ...         self.num_samples = state["num_samples"]
            ...
            ...     def migrate_state(self, state, version):
            ...         return {"num_samples": 32 * state["num_batches"]}
            >>> Samples().migrate_state({"num_batches": 3}, version=1)
            {'num_samples': 96}
        """
        name = type(self).__name__
        raise CheckpointError(
            "callback-state-version",
            f"The checkpoint holds version {version} of the state of {name}, but the current "
            f"state_version is {self.state_version}: override `{name}.migrate_state(state, "
            "version)` to convert it.",
        )


def has_users_state(owner: object) -> bool:
    """Whether an object has a `state_dict` that is not of this package. It may need what training
    creates first."""
    method: Any = getattr(type(owner), "state_dict", None)
    return method is not None and not str(getattr(method, "__module__", "")).startswith(
        "loopwright."
    )


class TrainerHooks:
    """The events as methods of the trainer itself; see `Callback` for when each one is called."""

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """Raise the error of a missing attribute, with the right name where other frameworks
            have that one."""
            from ._other_frameworks import explain_attribute

            explain_attribute(self, name)
            return object.__getattribute__(self, name)  # raises the first error again

    def on_train_start(self) -> None: ...
    def on_epoch_start(self) -> None: ...
    def on_train_step_start(self, batch: Any) -> None: ...
    def on_train_step_end(self, batch: Any, result: StepResult) -> None: ...
    def on_optimizer_start(self, optimizer: str) -> None: ...
    def on_update_end(self) -> None: ...
    def on_log(self, rows: list[StepRow]) -> None: ...
    def on_media(self, media: Media) -> None: ...
    def on_train_epoch_end(self) -> None: ...
    def on_epoch_end(self, metrics: Mapping[str, float]) -> None: ...
    def on_loop_end(self) -> None: ...
    def on_train_end(self) -> None: ...
    def on_eval_start(self, data: Stream) -> None: ...
    def on_eval_step_end(self, batch: Any, result: StepResult) -> None: ...
    def on_eval_log(self, data: Stream, num_batches: int) -> None: ...
    def on_eval_end(self, data: Stream) -> None: ...
    def on_rewind(self) -> None: ...
    def on_exception(self, error: BaseException) -> None: ...


@cache
def hook_names(vocabulary: type) -> tuple[str, ...]:
    return tuple(name for name in vars(vocabulary) if name.startswith("on_"))


def named_by_class(callbacks: Iterable[T]) -> dict[str, T]:
    """Callbacks under the names that their state is saved by: the class, numbered where it occurs
    again.

    >>> list(named_by_class([Callback(), Callback()]))
    ['Callback', 'Callback-2']
    """
    named: dict[str, T] = {}
    for callback in callbacks:
        base = name = type(callback).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{base}-{number}"
        named[name] = callback
    return named


class FunctionCallback(Callback):
    """A plain function as a callback: called as `function(trainer, metrics)` at the end of every
    epoch."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        check_arguments(function, ("trainer", "metrics"), f"Callback function {self.name}")

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.function(trainer, metrics)


CallbackLike = Callback | type[Callback] | Callable[[Any, Any], object]


def as_callbacks(given: Any) -> list[Callback]:
    """Return the list of callbacks of a constructor argument: an iterable of callbacks, one
    callback, or None."""
    if given is None:
        return []
    if (
        isinstance(given, (Callback, type, str, Mapping))
        or callable(given)
        or not isinstance(given, Iterable)
    ):
        given = [given]
    return [as_callback(callback) for callback in given]


def as_callback(given: Any) -> Callback:
    """Return the callback of an instance, a class, or a plain function."""
    if isinstance(given, type) and issubclass(given, Callback):
        check_arguments(given, (), f"The callback {given.__name__}, passed as a class,")
        given = given()
    if isinstance(given, Callback):
        check_hooks(given, Callback)
        return given
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if all(hasattr(given, method) for method in ("update", "compute", "reset")):
        raise ConfigurationError(
            "metric-as-callback",
            f"{name} is a metric, not a callback: pass it as `Trainer(metrics={name}(...))`, to "
            f"be measured in evaluations; `loopwright.callbacks.TorchMetrics({name}(...), "
            "on='train')` measures the training.",
        )
    if (
        callable(given)
        and not isinstance(given, type)
        and not any(n.startswith("on_") for n in dir(given))
    ):
        return FunctionCallback(given)
    raise ConfigurationError(
        "not-a-callback",
        f"{given!r} is not a callback: pass a loopwright.Callback, or a function of (trainer, "
        "metrics); a tracker goes into `loopwright.trackers.Track(...)`.",
    )


def check_hooks(callback: object, vocabulary: type, *, allow_other: bool = False) -> None:
    """Refuse misspelt hooks and hooks with other arguments, at registration rather than hours
    later."""
    check_hook_names(callback, vocabulary, allow_other=allow_other)
    for name in own_hooks(callback, vocabulary):
        function = getattr(callback, name)
        label = f"{type(callback).__name__}.{name}"
        parameters = inspect.signature(getattr(vocabulary, name)).parameters
        expected = [parameter for parameter in parameters if parameter != "self"]
        how = f"`def {name}({', '.join(['self', *expected])})`"
        check_arguments(function, expected, label, f" Write {how}.")


def check_hook_names(callback: object, vocabulary: type, *, allow_other: bool = False) -> None:
    """Refuse `on_*` methods that are no events; with `allow_other`, only names close to an
    event's."""
    known = hook_names(vocabulary)
    for name in dir(type(callback)):
        if not name.startswith("on_") or name in known or not callable(getattr(callback, name)):
            continue
        if not allow_other or near_names(name, known, cutoff=0.8):
            raise ConfigurationError(
                "unknown-event",
                f"{type(callback).__name__}.{name} is not an event and would never be called; "
                f"{nearest(name, known, cutoff=0.8)}",
            )


class Dispatch:
    """The functions of each event: the owner's own hook first, then those of the callbacks, in
    order.

    `trainer_for` returns the object that a callback gets as its trainer, where that is not the
    owner.
    """

    def __init__(
        self,
        vocabulary: type,
        owner: object,
        callbacks: Iterable[object],
        base: type | None = None,
        trainer_for: Callable[[Any], object] | None = None,
    ) -> None:
        self.hooks: dict[str, list[Hook]] = {name: [] for name in hook_names(vocabulary)}
        if base is not None:
            for name in own_hooks(owner, base):
                self.hooks[name].append(
                    named_hook(getattr(owner, name), f"{type(owner).__name__}.{name}", None)
                )
        for callback in callbacks:
            label = getattr(callback, "name", type(callback).__name__)
            given = owner if trainer_for is None else trainer_for(callback)
            for name in own_hooks(callback, vocabulary):
                if name not in getattr(callback, "ignored_events", ()):
                    self.hooks[name].append(
                        named_hook(getattr(callback, name), f"{label}.{name}", given)
                    )

    def emit(self, event: str, *args: Any) -> None:
        for hook in self.hooks[event]:
            hook(*args)


def own_hooks(owner: object, vocabulary: type) -> list[str]:
    """The events that an object has a method of its own for: one of its class, or one that was
    assigned to it."""
    kind = type(owner)
    assigned = getattr(owner, "__dict__", ())
    return [
        n
        for n in hook_names(vocabulary)
        if n in assigned or getattr(kind, n, None) is not getattr(vocabulary, n)
    ]


def named_hook(function: Hook, label: str, owner: object | None = None) -> Hook:
    """Bind a hook to its first argument; an exception in it is raised with a note of the callback
    and the event."""
    first = () if owner is None else (owner,)

    def call(*args: Any, **kwargs: Any) -> None:
        try:
            function(*first, *args, **kwargs)
        except Exception as error:
            error.add_note(f"raised in {label}")
            raise

    vars(call).update(label=label, source=function)  # for a profile
    return call
