"""The trainer as its run sees it: the methods that a run calls, which interfaces replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer

from ..callback import Callback, Hook, TrainerHooks, has_users_state
from ..data.open import open_stream
from ..data.random import Seed, resolve_seed
from ..errors import ConfigurationError
from .components import Components, checked_directory
from .media_log import MediaMethods

if TYPE_CHECKING:
    from ..data.stream import Stream
    from ..metrics.history import History
    from ..metrics.progress import Limits, Progress
    from ..metrics.result import StepResult
    from ..optim.build import Schedule
    from ..run.manifest import RunFacts
    from ..runtime import Runtime
    from ..runtime.feed import DeviceFeed
    from .run import TrainingRun
    from .update import OptimizerUpdate


Precision = Literal["fp32", "bf16", "fp16"]
Display = Literal["auto", "bar", "lines", "silent"]
Compile = Literal["step", "model", "blocks"]
Changes = Literal["refuse", "accept"]
MetricLike = Callable[[Any, Any], Any] | nn.Module | str
Metrics = MetricLike | Iterable[MetricLike] | Mapping[str, MetricLike]


class Indexed(Protocol):
    """Data with samples by index, such as a `torch.utils.data.Dataset`."""

    def __getitem__(self, index: Any, /) -> Any: ...


Data = Iterable[Any] | Indexed


@dataclass(frozen=True, slots=True)
class Words:
    """The names of the user's methods and arguments in messages; each interface has those of its
    document."""

    start_over: str = "resume=False"
    accept_changes: str = 'changes="accept"'
    no_run_dir: str = (
        "Training without a run directory"  # how the line at the start begins where there is none
    )
    step: str = "train_step"
    eval_step: str = "eval_step"
    update: str = "self.update(loss)"
    accumulate: str = "accumulate"
    nonfinite: str = (
        "Lower the learning rate, clip gradients (`clip_norm=`) or look for bad samples; "
        "`NonFiniteGuard('skip')` skips such updates."
    )
    clip: str = (  # what to do instead of clipping where there are no gradients
        "`self.update(loss)` computes the gradients, steps the optimizer and drops them. Remove "
        "the call and pass `clip_norm=` (or `clip_value=`) to the trainer"
    )
    record_media: str = (
        "Pass `run_dir=` to the trainer, or add a tracker from `loopwright.trackers` to the "
        "callbacks."
    )
    takes_count: bool = True  # whether a loss may be a sum, trained with the number of its items


class EpochChecks(Protocol):
    """Checks around and after the steps of an epoch."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def after_step(self, result: StepResult, position: int) -> None:
        """Check a step that has ended, at this position of its window."""

    def end_epoch(self) -> None:
        """Check the epoch."""


class OwnState:
    """The state that a subclass of a trainer adds to checkpoints, as their part "trainer"; None
    where it adds none."""

    def state_dict(self) -> dict[str, Any]:
        """Return what else a checkpoint must hold of your subclass: tensors, numbers, strings,
        lists, dicts."""
        self._check_own_state("state_dict")
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._check_own_state("load_state_dict")

    def _check_own_state(self, method: str) -> None:
        """Refuse a call that was meant for the weights of a model, which it would neither return
        nor load."""
        if not has_users_state(self):
            kind = type(self).__name__
            raise ConfigurationError(
                f"{kind}.{method}() is for the state that a subclass adds to checkpoints, and "
                f"{kind} adds none: call `{method}` of the model for its weights, or save and "
                "load all of the trainer."
            )

    def _capture_own_state(self) -> dict[str, Any] | None:
        if not has_users_state(self):
            return None
        state = self.state_dict()
        if not isinstance(state, Mapping):
            raise ConfigurationError(
                f"{type(self).__name__}.state_dict() returned {state!r:.60} "
                f"({type(state).__name__}): return a dict."
            )
        return dict(state)

    def _restore_own_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Load a captured state; returns a line where only the checkpoint or only the class has
        one."""
        kind = type(self).__name__
        if not has_users_state(self):
            ignored = (
                f"{source} has state of the trainer's class, but {kind} has no "
                "`load_state_dict`: this state was "
            )
            return [f"{ignored}ignored and will not be in the next checkpoint."] if saved else []
        if saved is None:
            return [
                f"{source} was saved before {kind} had `state_dict`: the state of {kind} begins "
                "anew."
            ]
        self.load_state_dict(saved)
        return []


class Program(MediaMethods, OwnState, TrainerHooks):
    """The interface of a trainer to its run: the methods that a run calls.

    `DefaultProgram` implements them, and interfaces replace some; `Trainer` adds the methods of
    users.
    """

    _words: Words = Words()
    _step_methods: ClassVar[tuple[str, ...]] = (  # methods of users that the fingerprint describes
        *("train_step", "compute_loss", "forward", "split_batch", "prepare_batch"),
    )
    _interface: ClassVar[str] = "native"  # the interface that the user has chosen, for the manifest
    _label: RunFacts  # the user's name, tags and config of the run
    _plateau_metric: str | None = "loss"  # of ReduceLROnPlateau; None if the user has to name it

    run: TrainingRun
    _components: Components
    callbacks: list[Callback]
    runtime: Runtime
    compile_mode: str | None  # the argument `compile`
    accumulate: int
    clip_norm: float | None
    clip_value: float | None
    _seed: Seed
    loss_fn: Any

    # What users and callbacks read

    @property
    def progress(self) -> Progress:
        """The counters of the run: epochs, steps, updates, samples, seconds."""
        return self.run.progress

    @property
    def history(self) -> History:
        """The metrics of all steps and epochs of the run so far."""
        return self.run.history

    @property
    def stop_reason(self) -> str | None:
        """The reason of the first stop request, or None."""
        return self.run.stop_reason

    @property
    def run_dir(self) -> Path | None:
        """The directory that the run is recorded in, or None. It can be assigned before `train`."""
        return self.run.run_dir

    @run_dir.setter
    def run_dir(self, path: str | Path | None) -> None:
        self.run.run_dir = checked_directory(path)

    @property
    def seed(self) -> int | None:
        """The seed of the run: the constructor's, or that of the last `seed_everything`."""
        return self._seed.value

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seed = Seed(seed)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The models by name: every module of the trainer that has a state."""
        return self._components.models

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module of the trainer by name, losses and metrics too."""
        return self._components.modules

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers by name."""
        return self._components.optimizers

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by name, each with its scheduler and cadence."""
        return self._components.schedules

    @property
    def _logged_run(self) -> TrainingRun:
        return self.run

    def say(self, line: str) -> None:
        """Print a line on the first process, unless the trainer is silent."""
        self.run.say(line)

    # What users write

    def configure_models(self) -> None:
        raise NotImplementedError

    def configure_optimizers(self) -> None:
        raise NotImplementedError

    def configure_data(self) -> tuple[Any, Any]:
        raise NotImplementedError

    def prepare_batch(self, batch: Any) -> Any:
        """Return the batch for `train_step` and `eval_step`. Default: its tensors moved to the
        device."""
        return self.runtime.move(batch)

    def train_step(self, batch: Any) -> Any:
        raise NotImplementedError

    def eval_step(self, batch: Any) -> Any:
        raise NotImplementedError

    def predict_step(self, batch: Any) -> Any:
        raise NotImplementedError

    # Building

    def setup(self) -> None:
        raise NotImplementedError

    def _settle_seed(self) -> None:
        """Take the last `seed_everything` of the first process, until models are built with it."""
        if self._seed.source != "argument" and not self._components.are_built:
            self._seed = self.runtime.broadcast_object(resolve_seed("auto"))

    def _setup_training(self) -> None:
        raise NotImplementedError

    def _use_run(self, run: TrainingRun, compiled: str | None) -> None:
        raise NotImplementedError

    def _check_defaults(self) -> None:
        """Check the components that the default step and the default loss need."""

    def _adopt_replaced(self) -> None:
        raise NotImplementedError

    @property
    def _other_optimizers(self) -> Iterable[Optimizer]:
        """Optimizers that the user steps by hand, which are no components of this trainer."""
        return ()

    @property
    def _has_default_step(self) -> bool:
        return False

    def _measure_as_default(self, batch: Any) -> Any:
        """Return the result of the default `train_step` for a batch, without training on it."""
        raise NotImplementedError

    @property
    def _builds_models(self) -> bool:
        return True

    def _describe_more(self) -> dict[str, Any]:
        """Return further entries of the fingerprint, besides components and data."""
        return {}

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Open a stream over data, as the callbacks adapt it."""
        seed = (
            self.runtime.broadcast_object(torch.initial_seed()) if self.seed is None else self.seed
        )
        stream = open_stream(
            data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=self.runtime.shard
        )
        for callback in self.run.callbacks:
            stream = callback.adapt_stream(stream, is_training=shuffle)
        return stream

    def _open_feed(self, stream: Stream) -> DeviceFeed | None:
        """Return what moves batches in advance; None on the host, and where `prepare_batch` is not
        the default."""
        prepare = getattr(unwrap(self.prepare_batch), "__func__", None)
        return (
            self.runtime.open_feed(pins=stream.pin_memory is None)
            if prepare is Program.prepare_batch
            else None
        )

    # Epochs and steps

    def _train_epoch(self) -> None:
        raise NotImplementedError

    @property
    def _defers_signals(self) -> bool:
        """Whether a signal has to wait, since a resumed run would not repeat the present work."""
        return False

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs."""
        for schedule in self.schedules.values():
            if schedule.interval == "epoch":
                schedule.step(row)

    def _keep_schedules(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _eval_mode(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _eval_without_samples(self, batch: Any) -> None:
        raise NotImplementedError

    # Checks

    def _watch_steps(self) -> EpochChecks | None:
        raise NotImplementedError

    def _check_own_step(self, update: OptimizerUpdate) -> None:
        raise NotImplementedError

    def _check_trained(self) -> None:
        raise NotImplementedError

    def _check_update(self, loss: Any, count: Any = None) -> None:
        raise NotImplementedError

    # Checkpoints

    @property
    def _users_trainer(self) -> OwnState:
        """The trainer whose class the user wrote: this one, or that of an interface, which its core
        trainer has as `interface`."""
        return self if self._interface == "native" else cast(Any, self).interface

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Load the saved state of the user's trainer; returns a line where there is none."""
        return self._users_trainer._restore_own_state(saved, source)

    def _capture(self, run: TrainingRun, *, has_history: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _return_to(self, run: TrainingRun, state: Mapping[str, Any], source: str) -> None:
        raise NotImplementedError

    @property
    def _planned_limits(self) -> Limits:
        """How far the run is to go, as far as that is known."""
        return self.run.limits

    def _facts(self) -> RunFacts:
        """Return the entries of the manifest that describe the run, once its data is open and its
        limits are set."""
        raise NotImplementedError

    # Callbacks

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        """Replace the functions of all events, in place; an interface adds those of its own
        events."""
        for hooks in self.run.hooks.values():
            hooks[:] = map(function, hooks)

    def _timed_methods(self) -> list[tuple[object, str, str]]:
        """Return the methods that a profile times, as (object, name, part of the time); an
        interface adds its own."""
        methods = {
            "prepare_batch": "transfer",
            "forward": "forward",
            "compute_loss": "forward",
            "save": "checkpoints",
        }
        own = [(self, name, part) for name, part in methods.items() if hasattr(type(self), name)]
        return [*own, (self.run, "flush", "logging")]

    @property
    def _core(self) -> Program:
        """The trainer that owns the run; a callback may have the trainer of an interface
        instead."""
        return self

    def _trainer_for(self, callback: Callback) -> Any:
        """Return the object that a callback gets as its trainer."""
        return self
