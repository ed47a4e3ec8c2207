"""The trainer as its run sees it: `Program`, what a run asks of its trainer and interfaces replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from torch import nn

from ..callback import has_users_state
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..callback import Callback
    from ..data.random import Seed
    from ..data.stream import Stream
    from ..metrics.progress import Limits
    from ..runtime.base import DeviceFeed
    from .run import TrainingRun


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
class MessageNames:
    """The names of the user's methods and arguments in messages, as the interface has them."""

    start_over: str = "resume=False"
    accept_changes: str = 'changes="accept"'
    # how the line at the start begins where there is no run directory
    no_run_dir: str = "Training without a run directory"
    step: str = "train_step"
    eval_step: str = "eval_step"
    update: str = "self.update(loss)"
    accumulate: str = "accumulate"
    nonfinite: str = (
        "Lower the learning rate, clip gradients (`clip_norm=`) or look for bad samples; "
        "`NonFiniteGuard('skip')` skips such updates."
    )
    # what to do instead of clipping where there are no gradients
    clip: str = (
        "`self.update(loss)` computes the gradients, steps the optimizer and drops them. Remove "
        "the call and pass `clip_norm=` (or `clip_value=`) to the trainer"
    )
    record_media: str = (
        "Pass `run_dir=` to the trainer, or add a tracker from `loopwright.trackers` to the "
        "callbacks."
    )
    takes_count: bool = True  # whether a loss may be a sum, trained with the number of its items


class OwnState:
    """The state that a subclass of a trainer adds to checkpoints, as their part "trainer"."""

    def state_dict(self) -> dict[str, Any]:
        """Return what else a checkpoint must hold: tensors, numbers, strings, lists, dicts."""
        self._check_own_state("state_dict")
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._check_own_state("load_state_dict")

    def _check_own_state(self, method: str) -> None:
        """Refuse a call that was meant for the weights of a model."""
        if not has_users_state(self):
            kind = type(self).__name__
            raise ConfigurationError(
                "no-trainer-state",
                f"{kind}.{method}() is for the state that a subclass adds to checkpoints, and "
                f"{kind} adds none: call `{method}` of the model for its weights, or save and "
                "load all of the trainer.",
            )

    def _capture_own_state(self) -> dict[str, Any] | None:
        if not has_users_state(self):
            return None
        state = self.state_dict()
        if not isinstance(state, Mapping):
            raise ConfigurationError(
                "wrong-trainer-state",
                f"{type(self).__name__}.state_dict returned a {type(state).__name__}: return a "
                "dict of what `load_state_dict` needs.",
            )
        return dict(state)

    def _restore_own_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Load a captured state; return a line if only the checkpoint or the class has one."""
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


class Program(Protocol):
    """What a run asks of its trainer. `Trainer` has the defaults; interfaces replace some of them."""

    # What the user gave, and may write

    run: TrainingRun
    callbacks: list[Callback]
    compile_mode: str | None  # the argument `compile`
    accumulate: int
    loss_fn: Any
    seed: int | None
    _seed: Seed

    def configure_data(self) -> tuple[Any, Any]: ...
    def prepare_batch(self, batch: Any) -> Any: ...
    def split_batch(self, batch: Any) -> tuple[Any, Any]: ...
    def forward(self, inputs: Any) -> Any: ...
    def compute_loss(self, outputs: Any, targets: Any) -> Any: ...
    def train_step(self, batch: Any) -> Any: ...
    def eval_step(self, batch: Any) -> Any: ...
    def predict_step(self, batch: Any) -> Any: ...

    # What the interface is

    _message_names: MessageNames
    _interface: str  # that the user has chosen, for the manifest
    _step_methods: tuple[str, ...]  # methods of users that the fingerprint describes
    _plateau_metric: str | None  # of ReduceLROnPlateau; None if the user has to name it

    @property
    def _has_default_step(self) -> bool: ...
    @property
    def _other_optimizers(self) -> Iterable[Optimizer]:
        """Optimizers that the user steps by hand, which are no components of this trainer."""

    @property
    def _planned_limits(self) -> Limits:
        """How far the run is to go, as far as that is known."""

    @property
    def _defers_signals(self) -> bool:
        """Whether a signal has to wait, since a resumed run would not repeat the present work."""

    def _describe_more(self) -> dict[str, Any]:
        """Return further entries of the fingerprint, besides components and data."""

    def _trainer_given_to(self, callback: Callback) -> Any:
        """Return the object that a callback gets as its trainer."""

    # What it does

    def _setup_training(self) -> None:
        """Prepare a `train` call."""

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Open a stream over data, as the callbacks adapt it."""

    def _open_feed(self, stream: Stream) -> DeviceFeed | None:
        """Return what moves batches to the device in advance; None where nothing does."""

    def _adopt_replaced(self) -> None:
        """Use models and optimizers that a hook has assigned in place of others, or refuse them."""

    def _watch_steps(self) -> Any:
        """Return the context that checks the steps of an epoch, with the methods of `StepWatch`; None
        for the default steps."""

    def _train_epoch(self) -> None:
        """Train one epoch; an interface adds the events of its document around it."""

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs."""

    def _check_trained(self) -> None:
        """Check after the first epoch that every optimizer has trained something."""

    def _eval_mode(self) -> AbstractContextManager[None]:
        """Context with the models in eval mode; every module gets its previous mode back."""

    def _eval_without_samples(self, batch: Any) -> None:
        """Run an evaluation step for its collectives only; `batch` is another process's."""

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Load the saved state of the user's trainer; return lines about what does not fit."""


def users_trainer(program: Program) -> OwnState:
    """Return the trainer whose class the user wrote: the core's, or that of an interface."""
    trainer = cast(Any, program)
    owner: OwnState = trainer if program._interface == "native" else trainer.interface
    return owner
