"""The core trainer behind the adversarial interface: an epoch is one `train` call of it, and its
events are the hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...callback import Callback
from ...callbacks.nonfinite import NonFiniteGuard
from ...checkpoint import Checkpoint, CheckpointStore
from ...data.open import Stream
from ...errors import ConfigurationError, DataError
from ...metrics.progress import Limits
from ...metrics.result import StepResult
from ...optim.build import Schedule
from ...run.changes import flatten
from ...runtime.base import is_launched
from ...training.assembly import reassemble, with_defaults
from ...training.components import found_on
from ...training.fingerprint import describe_components
from ...training.own_steps import OwnSteps
from ...training.program import MessageNames
from ...training.resume import continue_from
from ...training.step_checks import StepWatch
from ...training.updates import OptimizerChoice, listed
from .._shared import InterfaceCore, InterfaceNames, as_tracker, check_idle, on_first_process
from .config import Common, Saving
from .experiment import (
    EpochRecorder,
    ExperimentRun,
    ResumePoints,
    epochs_behind,
    recorded_progress,
)
from .losses import LossManager

if TYPE_CHECKING:
    from ...metrics.rows import StepRow
    from ...trackers import Track
    from .trainer import Trainer

LOOP = "the loop over the batches is the trainer's own: override train_step"
NAMES = InterfaceNames(
    interface="adversarial",
    messages=MessageNames(
        start_over="train.load.continue_train: false",
        accept_changes="train.load.accept_changes: true",
        update="self.update(loss, optimizer)",
        nonfinite="Lower the learning rate (train.generator.learning_rate.initial, and the "
        "discriminator's) or the weights of the losses (train.loss), or look for bad images.",
        clip="call it between `loss.backward()` and the step of the optimizer",
        takes_count=False,
    ),
    step_methods=(),  # the functions of an epoch are given with each call
    events_elsewhere={"_train_paired_core": LOOP, "trainer_core": LOOP},
)
# settings that may change when a run is continued
CHANGEABLE = (
    *("common.", "save.", "visualizer.", "train.load.", "train.generator.use_checkpointing"),
    *("dataloader.num_workers", "dataloader.dataroot", "dataloader.masking"),
)
COMPONENTS = (nn.Module, Optimizer, LRScheduler)
Hooks = Mapping[str, Callable[..., Any]]


class InterfaceState(Callback):
    """The interface's state in a checkpoint: the epoch, losses, and scalers of its own.

    Checkpoints hold it under the class name, so that the name is part of their format.
    """

    def __init__(self, interface: Trainer) -> None:
        self.interface = interface

    def state_dict(self) -> dict[str, Any]:
        losses = losses_of(self.interface)
        scalers = found_on(self.interface, torch.amp.GradScaler, {})
        return {
            "epoch": self.interface.current_epoch,
            "losses": None if losses is None else losses.state_dict(),
            "scalers": {name: scaler.state_dict() for name, scaler in scalers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.interface.current_epoch = state["epoch"]
        losses = losses_of(self.interface)
        if losses is not None and state["losses"] is not None:
            losses.load_state_dict(state["losses"])
        for name, scaler in found_on(self.interface, torch.amp.GradScaler, {}).items():
            if name in state["scalers"]:
                scaler.load_state_dict(state["scalers"][name])


class AdversarialCore(InterfaceCore):
    """Trains whatever networks, optimizers and schedulers the interface has as attributes, under
    their names."""

    names = NAMES
    _plateau_metric = None

    def __init__(
        self, interface: Trainer, settings: Common, trackers: Sequence[Track] = ()
    ) -> None:
        guard = NonFiniteGuard()
        self.interface: Trainer = interface
        self.trackers = trackers
        self._hooks: Hooks | None = None  # of the epoch under way
        self._adopted: dict[str, int] = {}
        # whether it is known at which position in the experiment's record this run begins
        self._is_placed = False
        super().__init__(
            callbacks=[InterfaceState(interface), guard, *trackers],
            precision=settings.precision,
            device=device_of(settings),
            seed=settings.seed,
            progress="silent",
        )
        guard.on_train_start(self)  # `update` is guarded outside of epochs as well

    def use_directory(self, directory: Path, settings: Saving) -> None:
        """Let the run write to a directory: metrics, resume points, what ran and how it ended."""
        self.run_dir = directory
        self.run.files.directory = ExperimentRun(directory)
        self.run.call.number = 1
        self.progress.call = 1
        recorders = [EpochRecorder()] if self.runtime.is_main else []
        self.run.bind([*self.run.callbacks, *recorders, ResumePoints(settings)])

    def finish(self) -> None:
        """The experiment is over."""
        for tracker in self.trackers:
            tracker.finish("finished")
        if isinstance(self.run.files.directory, ExperimentRun):
            self.run.files.directory.finish()

    # Components

    @property
    def _builds_models(self) -> bool:
        """The interface's constructor does, after seeding."""
        return False

    def configure_models(self) -> None:
        self._components.models = found_on(self.interface, nn.Module, {})

    def configure_optimizers(self) -> None:
        self._components.optimizers = found_on(self.interface, Optimizer, {})
        schedulers = found_on(self.interface, LRScheduler, {})
        self._components.schedules = {
            name: Schedule(scheduler, "epoch") for name, scheduler in schedulers.items()
        }

    def adopt(self) -> None:
        """Use the components that the interface has now; optimizers that it had before keep their
        scalers and counts.

        Hooks may add and remove attributes, not only replace them, so that everything is assembled
        anew; the core's `_adopt_replaced` is for a fixed set of names.
        """
        found = {
            name: id(value)
            for name, value in vars(self.interface).items()
            if isinstance(value, COMPONENTS)
        }
        if found != self._adopted:
            self._adopted = found
            reassemble(self)
            if self.run.files.fingerprint is None and self.optimizers:
                self.run.files.fingerprint = describe_components(self.run)

    def _setup_training(self) -> None:
        """As the core does it; an interface whose hooks train nothing that it knows of has no
        updates."""
        self.setup()
        if self.optimizers:
            super()._setup_training()
        else:
            self.run.bind(with_defaults(self))

    def update(self, loss: Tensor, optimizer: OptimizerChoice = None, **options: Any) -> None:
        """As the core does it; gradients that a backward pass of the user's own left are refused."""
        self.adopt()
        for one in listed(optimizer):
            update = self.run.updates.find(one)
            if any(param.grad is not None for param in update.params):
                raise ConfigurationError(
                    "gradients-of-other-loss",
                    f"The parameters of {update.name} have gradients that do not come from update: "
                    "your own backward() reached them, for example the backward pass of the "
                    "generator's loss through the discriminator. Call "
                    f"self.{update.name}.zero_grad() before self.update. If you want both "
                    "gradients, pass update the sum of the losses.",
                )
        super().update(loss, optimizer, **options)

    @property
    def _planned_limits(self) -> Limits:
        """Those of the experiment; each epoch of it is a `train` call."""
        return Limits(epochs=self.interface._planned_epochs)

    def _describe_more(self) -> dict[str, Any]:
        """The settings that decide what is learnt from which images."""
        settings = flatten(self.interface.config.model_dump(mode="json"))
        return {
            f"config.{key}": value
            for key, value in settings.items()
            if not key.startswith(CHANGEABLE)
        }

    def _watch_steps(self) -> StepWatch:
        watch = StepWatch(self)
        watch.is_first = False  # a step may leave its gradients to a later one
        return watch

    def scaler_of(self, optimizer: Optimizer) -> torch.amp.GradScaler:
        """The loss scaler that `update` uses for an optimizer; one that does nothing where it uses
        none."""
        scaler = self.run.updates.find(optimizer).scaler
        disabled = torch.amp.GradScaler(self.runtime.device.type, enabled=False)
        return disabled if scaler is None else scaler

    def use_scaler(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Let `update` use a loss scaler of the interface's."""
        self.run.updates.find(optimizer).scaler = scaler if scaler.is_enabled() else None

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Nothing: the hooks step the schedulers."""

    def _open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        stream = super()._open(data, batch_size, shuffle=shuffle)
        if shuffle and self.run_dir is not None:
            stream.check_resumable()
        return stream

    # An epoch

    @property
    def is_running(self) -> bool:
        return self._hooks is not None

    def train_once(self, data: Any, hooks: Hooks) -> None:
        """One epoch over the data, or what is left of one; what an exception cut short starts over
        next time."""
        check_idle(self.is_running, "train_paired()")
        self.adopt()
        self._place()
        self._hooks = hooks
        try:
            self.train(data, 1)
        except Exception:
            self.progress.go_to_epoch(self.progress.epoch)
            raise
        finally:
            self._hooks = None

    def on_epoch_start(self) -> None:
        assert self._hooks is not None
        with OwnSteps(self.run):
            self._hooks["on_epoch_start"]()

    def train_step(self, batch: Any) -> StepResult:
        assert self._hooks is not None
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise DataError(
                "batch-no-pair",
                f"A batch of self.train_loader is a {type(batch).__name__}, not a pair: return "
                "(inputs, targets) for each item of the data set.",
            )
        window = self.run.window
        window.has_stepped = True  # hooks have run: no second try in micro-batches
        losses = losses_of(self.interface)
        if losses is not None:
            losses.measured = {}
        returned = self._hooks["train_step"](*batch, self.progress.epoch_step)
        result = StepResult.of(returned, window.size)
        measured = {} if losses is None else dict(losses.measured)
        metrics = measured | dict(result.metrics)
        return StepResult(result.loss, window.size, metrics, losses=tuple(measured))

    def on_log(self, rows: list[StepRow]) -> None:
        """At a log point, keep the losses of several processes as means over whole batches."""
        losses = losses_of(self.interface)
        if losses is not None and losses.is_shared:
            for row in rows:
                losses.keep(row)

    def on_train_epoch_end(self) -> None:
        assert self._hooks is not None
        with OwnSteps(self.run):
            self._hooks["on_epoch_end"]()

    # Going on

    def continue_from(self, checkpoint: Checkpoint) -> int:
        """Take the complete state of a run; the number of epochs that it had behind it."""
        epochs = epochs_behind(checkpoint.path, checkpoint.tree)
        self.adopt()
        self._setup_training()
        continue_from(
            self.run, checkpoint, accepts_changes=self.interface.config.train.load.accept_changes
        )
        self._is_placed = True
        self.runtime.barrier("continuing")
        if self.run.files.directory is not None and self.runtime.is_main:
            store = CheckpointStore(self.run.files.directory.checkpoints)
            store.discard(after_update=self.progress.update)
        return epochs

    def _place(self) -> None:
        """Before the first epoch: networks that were loaded by themselves go on behind all that was
        recorded."""
        directory = self.run.files.directory
        is_placed = self._is_placed
        self._is_placed = True
        if directory is None or is_placed or not self.interface.is_continuing:
            return
        earlier = on_first_process(self.runtime, lambda: recorded_progress(directory))
        if earlier is not None:
            self.run.start_after(earlier, [{} for _ in range(earlier.epoch)])


def device_of(settings: Common) -> str | None:
    """The device that a config names; None for the best there is, or the one of each process."""
    if settings.device == "cuda" and settings.gpu_ids and not is_launched():
        return f"cuda:{settings.gpu_ids[0]}"
    return None if settings.device == "auto" else settings.device


def losses_of(trainer: object) -> LossManager | None:
    """The loss manager of a trainer; None where nothing has made one."""
    return getattr(trainer, "loss_manager", None)


def checked_trackers(given: Any) -> list[Track]:
    """The trackers of the argument `callbacks`, which stay open from one epoch to the next."""
    trackers = []
    for callback in given if isinstance(given, (list, tuple)) else [given]:
        tracker = as_tracker(callback)
        if tracker is None:
            raise ConfigurationError(
                "only-trackers",
                f"callbacks has {callback!r}; pass trackers of loopwright.trackers, as in "
                "callbacks=[TensorBoard('logs')], and use the hooks of an epoch for all else.",
            )
        tracker.is_kept_open = True
        trackers.append(tracker)
    return trackers
