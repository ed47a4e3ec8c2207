"""The events of a run and who hears them: `Callback`, and the dispatch that is worked out once per run."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from .checkpoint import AsyncWriter
    from .data.open import Stream
    from .metrics.best import WatchedMetric
    from .metrics.result import StepResult
    from .metrics.rows import StepRow
    from .trainer import Trainer

Hook = Callable[..., None]
T = TypeVar("T")
COUNTS = frozenset(("epoch", "step", "batch_idx", "epoch_idx", "iteration"))  # of other frameworks, in front


class Callback:
    """Observes a run. Override the `on_*` methods you need; only those are ever called.

    The trainer has hooks of the same names, without the `trainer` argument, which run before the callbacks'.
    """

    evaluates_again = False  # whether it evaluates in `on_eval_end` and adds all that measures under its own names
    unheard: Collection[str] = ()  # events that this one does without, although its class has a method for them
    state_version = 1  # of what `state_dict` returns; raise it where that changes, and override `migrate_state`
    precedence = 0  # callbacks with a higher one hear of every event later, whatever order they were given in

    def on_train_start(self, trainer: Trainer) -> None:
        """A `train` call begins; everything is built and, when resuming, restored."""

    def on_epoch_start(self, trainer: Trainer) -> None:
        """An epoch begins (not called again when a run is resumed inside one)."""

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        """A batch is about to go through `train_step`."""

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        """A batch went through `train_step`."""

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        """The named optimizer's gradients are complete and unscaled; clipping and its step come next."""

    def on_update_end(self, trainer: Trainer) -> None:
        """A window of steps, with every optimizer step in it, is over. Checkpoints are taken here."""

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        """Step metrics were read from the device: one row for each step since the last time.

        A row has the metrics (`row["loss"]`) and their place in the run (`row.step`, `row.update`, `row.epoch`,
        `row.samples`, `row.seconds`).
        """

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """All batches of an epoch are through; what is given to `trainer.log` here is part of the epoch's row."""

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """An epoch's data is exhausted, evaluation included; `metrics` is its row in the history."""

    def on_loop_end(self, trainer: Trainer) -> None:
        """The loop was left, by a limit, a stop or a signal; all is as training left it. Final checkpoint."""

    def on_train_end(self, trainer: Trainer) -> None:
        """A `train` call has done what it was asked to; not called when a signal or an exception ended it."""

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        """An evaluation over `data` begins."""

    def on_eval_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        """A batch went through `eval_step`."""

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        """The batches are through; what is given to `trainer.log` here still belongs to this evaluation."""

    def on_rewind(self, trainer: Trainer) -> None:
        """Training went back to an earlier update of this epoch; states are loaded, what was written since is void."""

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        """An exception is leaving `train`; it is raised again afterwards."""

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        """The stream that training or evaluation is to read instead of this one."""
        return stream

    def metric_names(self, known: set[str]) -> set[str]:
        """Names of epoch metrics that this callback adds to the `known` ones with `trainer.log`."""
        return set()

    def eval_streams(self, trainer: Trainer) -> Mapping[str, Stream]:
        """Data that this callback evaluates by itself, by what it puts in front of the names of what that measures."""
        return {}

    def finish_again(self, trainer: Trainer) -> None:
        """An earlier process finished this run, and there is nothing to train: leave the models as its end did."""

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        """Start writing what a resume point of now relies on: it is completed after what these writers write."""
        return ()

    def watched_metrics(self) -> Iterable[WatchedMetric]:
        """Metrics of which it looks for the best values; before the first step each is settled, or refused."""
        return ()

    def required_metrics(self) -> set[str]:
        """Names of epoch metrics that this callback cannot work without; checked before the first step."""
        return set()

    @property
    def has_own_state(self) -> bool:
        """Whether this callback has a `state_dict` of its own; without one, metrics among its attributes are saved."""
        return type(self).state_dict is not Callback.state_dict

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for this callback to go on exactly: tensors, numbers, strings, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        """Turn a state that an earlier version of this class saved into one that `load_state_dict` takes.

        Called before `load_state_dict` where a checkpoint has a lower `state_version` than the class. A checkpoint with
        a higher one is refused.

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
            f"The checkpoint has version {version} of the state of {name}, whose state_version is "
            f"{self.state_version}: override `{name}.migrate_state(state, version)` to turn the one into the other."
        )


class TrainerHooks:
    """The same events as methods of the trainer itself; see `Callback` for when each one happens."""

    if not TYPE_CHECKING:  # or every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            """An attribute that is not there: what to write instead, if other frameworks have it."""
            from ._other_frameworks import explain_attribute

            explain_attribute(self, name)
            return object.__getattribute__(self, name)  # which raises again what it raised

    def on_train_start(self) -> None: ...

    def on_epoch_start(self) -> None: ...

    def on_train_step_start(self, batch: Any) -> None: ...

    def on_train_step_end(self, batch: Any, result: StepResult) -> None: ...

    def on_optimizer_start(self, optimizer: str) -> None: ...

    def on_update_end(self) -> None: ...

    def on_log(self, rows: list[StepRow]) -> None: ...

    def on_train_epoch_end(self) -> None: ...

    def on_epoch_end(self, metrics: Mapping[str, float]) -> None: ...

    def on_loop_end(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_eval_start(self, data: Stream) -> None: ...

    def on_eval_step_end(self, batch: Any, result: StepResult) -> None: ...

    def on_eval_end(self, data: Stream) -> None: ...

    def on_rewind(self) -> None: ...

    def on_exception(self, error: BaseException) -> None: ...


class Rewinding(BaseException):
    """Raised by a callback at the end of a step or update: the loop calls `undo` and goes on from where that leads.

    No `Exception`, so that nobody's error handling stops it on the way.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        self.undo = undo


def hook_names(vocabulary: type) -> tuple[str, ...]:
    return tuple(name for name in vars(vocabulary) if name.startswith("on_"))


def named_by_class(callbacks: Iterable[T]) -> dict[str, T]:
    """Callbacks under the names that their state is saved by: the class, numbered where it occurs again.

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
    """A plain function as a callback: called as `function(trainer, metrics)` at the end of every epoch."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        check_arguments(function, ("trainer", "metrics"), f"Callback function {self.name}")

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.function(trainer, metrics)


def as_callbacks(given: Any) -> list[Callback]:
    """Callbacks from what the user passed: an iterable of them, one of them, or nothing."""
    if given is None:
        return []
    if isinstance(given, (Callback, type, str, Mapping)) or callable(given) or not isinstance(given, Iterable):
        given = [given]
    return [as_callback(callback) for callback in given]


def as_callback(given: Any) -> Callback:
    """A callback from what the user passed: an instance, a class, or a plain function."""
    if isinstance(given, type) and issubclass(given, Callback):
        check_arguments(given, (), f"The callback {given.__name__}, passed as a class,")
        given = given()
    if isinstance(given, Callback):
        check_hooks(given, Callback)
        _check_state_version(given)
        return given
    name = given.__name__ if isinstance(given, type) else type(given).__name__
    if all(hasattr(given, method) for method in ("update", "compute", "reset")):
        raise ConfigurationError(
            f"{name} is a metric and no callback: pass `loopwright.callbacks.TorchMetrics({name}(...))`, which "
            "feeds it the batches of evaluations, or of training with `on='train'`."
        )
    if callable(given) and not isinstance(given, type) and not any(n.startswith("on_") for n in dir(given)):
        return FunctionCallback(given)
    raise ConfigurationError(
        f"{given!r} is not a callback: pass a loopwright.Callback, or a function of (trainer, metrics)."
    )


def _check_state_version(callback: Callback) -> None:
    version = callback.state_version
    if type(version) is not int or version < 1:
        raise ConfigurationError(
            f"{type(callback).__name__}.state_version is {version!r}: use a whole number, 1 or more, and raise it when "
            "what `state_dict` returns changes."
        )


def check_hooks(callback: object, vocabulary: type, *, allow_other: bool = False) -> None:
    """Refuse misspelt hooks and hooks whose arguments do not fit, at registration rather than hours later."""
    check_hook_names(callback, vocabulary, allow_other=allow_other)
    for name in hook_names(vocabulary):
        if getattr(type(callback), name) is getattr(vocabulary, name):
            continue
        expected = [p for p in inspect.signature(getattr(vocabulary, name)).parameters if p != "self"]
        check_arguments(getattr(callback, name), expected, f"{type(callback).__name__}.{name}")
        _refuse_counts(getattr(callback, name), expected, f"{type(callback).__name__}.{name}")


def check_hook_names(callback: object, vocabulary: type, *, allow_other: bool = False) -> None:
    """Refuse `on_*` methods that are no events; with `allow_other`, those that look like a misspelt one."""
    known, owner = hook_names(vocabulary), type(callback).__name__
    for name in dir(type(callback)):
        if not name.startswith("on_") or name in known or not callable(getattr(callback, name)):
            continue
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.8 if allow_other else 0.5)
        if near or not allow_other:
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there is: {', '.join(known)}."
            raise ConfigurationError(f"{owner}.{name} is not an event and would never be called{hint}")


def _refuse_counts(function: Callable[..., Any], expected: Sequence[str], label: str) -> None:
    """Refuse a hook whose first argument is to be a number, as in Keras: the trainer would be given in its place."""
    first = next(iter(inspect.signature(function).parameters), None)
    if first in COUNTS and expected and first != expected[0]:
        raise ConfigurationError(
            f"{label} takes {first!r} first, and is called with ({', '.join(expected)}): write "
            f"`def {label.rpartition('.')[2]}(self, {', '.join(expected)})`; numbers are in `trainer.progress`."
        )


def check_arguments(function: Callable[..., Any], expected: Iterable[str], label: str) -> None:
    expected = list(expected)
    try:
        inspect.signature(function).bind(*expected)
    except TypeError as error:
        raise ConfigurationError(
            f"{label} does not take the arguments it is called with ({', '.join(expected)}): {error}."
        ) from None


class Dispatch:
    """Which functions run at each event: the owner's own hook first, then the callbacks', in order.

    `trainer_for` says what each callback is given as its trainer, where that is not the owner.
    """

    def __init__(
        self,
        vocabulary: type,
        owner: object,
        callbacks: Iterable[object],
        base: type | None = None,
        trainer_for: Callable[[Any], object] | None = None,
    ) -> None:
        self.hooks: dict[str, list[Hook]] = {}
        for name in hook_names(vocabulary):
            found: list[Hook] = []
            if base is not None and getattr(type(owner), name) is not getattr(base, name):
                found.append(named_hook(getattr(owner, name), f"{type(owner).__name__}.{name}", None))
            for callback in callbacks:
                is_overridden = getattr(type(callback), name, None) is not getattr(vocabulary, name)
                if is_overridden and name not in getattr(callback, "unheard", ()):
                    label = getattr(callback, "name", type(callback).__name__)
                    given = owner if trainer_for is None else trainer_for(callback)
                    found.append(named_hook(getattr(callback, name), f"{label}.{name}", given))
            self.hooks[name] = found

    def emit(self, event: str, *args: Any) -> None:
        for hook in self.hooks[event]:
            hook(*args)


def named_hook(function: Hook, label: str, owner: object | None = None) -> Hook:
    """The function with its owner bound, so that an exception in it says which callback and event it came from."""
    first = () if owner is None else (owner,)

    def call(*args: Any, **kwargs: Any) -> None:
        try:
            function(*first, *args, **kwargs)
        except Exception as error:
            error.add_note(f"raised in {label}")
            raise

    return call
