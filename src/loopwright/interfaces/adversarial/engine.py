"""The core trainer behind the adversarial interface: an epoch is one `train` call of it, and its
events are the hooks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...callback import Callback
from ...checkpoint import Checkpoint, CheckpointStore
from ...data.open import Stream
from ...errors import ConfigurationError, DataError
from ...metrics.progress import Limits
from ...metrics.result import StepResult
from ...optim.build import Schedule
from ...run.changes import flatten
from ...trainer import Trainer as CoreTrainer
from ...training.assembly import reassemble, with_defaults
from ...training.components import found_on
from ...training.fingerprint import describe_components
from ...training.program import Words
from ...training.resume import continue_from
from ...training.updates import OptimizerChoice, listed
from .._shared import as_tracker, on_first_process
from .config import Common, Saving, runtime_of
from .experiment import (
    EpochRecorder,
    ExperimentRun,
    Recorded,
    ResumePoints,
    epochs_behind,
    read_recorded,
)
from .losses import LossManager, losses_of
from .steps import EpochHooks, NonFiniteGuard, OwnSteps, check_gradients, check_loss, optimizer_name

if TYPE_CHECKING:
    from ...metrics.rows import StepRow
    from ...trackers import Track
    from .trainer import Trainer

logger = logging.getLogger("loopwright")

CHANGEABLE = (
    *("common.", "save.", "visualizer.", "train.load.", "train.generator.use_checkpointing"),
    *("dataloader.num_workers", "dataloader.dataroot", "dataloader.masking."),
)
COMPONENTS = (nn.Module, Optimizer, LRScheduler)


class InterfaceState(Callback):
    """The interface's state in a checkpoint: the epoch, losses, and scalers of its own.

    Checkpoints hold it under the class name, so that the name is part of their format.
    """

    def __init__(self, interface: Trainer) -> None:
        self.interface = interface

    def state_dict(self) -> dict[str, Any]:
        interface = self.interface
        losses = losses_of(self.interface)
        scalers = found_on(interface, torch.amp.GradScaler, {})
        return {
            "epoch": interface.current_epoch,
            "losses": None if losses is None else losses.state_dict(),
            "scalers": {name: scaler.state_dict() for name, scaler in scalers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        interface = self.interface
        interface.current_epoch = state["epoch"]
        if (losses := losses_of(interface)) is not None and state["losses"] is not None:
            losses.load_state_dict(state["losses"])
        for name, scaler in found_on(interface, torch.amp.GradScaler, {}).items():
            if name in state["scalers"]:
                scaler.load_state_dict(state["scalers"][name])


class Engine(CoreTrainer):
    """Trains whatever networks, optimizers and schedulers the interface has as attributes, under
    their names."""

    _words = Words(
        start_over="train.load.continue_train: false",
        accept_changes="train.load.accept_changes: true",
        clip="call it between `loss.backward()` and the step of the optimizer",
    )
    _interface = "adversarial"
    _plateau_metric = None
    _step_methods = ()  # the functions of an epoch are given with each call

    def __init__(
        self, interface: Trainer, settings: Common, trackers: Sequence[Track] = ()
    ) -> None:
        guard = NonFiniteGuard()
        self.trackers = trackers
        super().__init__(
            callbacks=[InterfaceState(interface), guard, *trackers],
            precision=settings.precision,
            runtime=runtime_of(settings),
            seed=settings.seed,
            progress="silent",
        )
        guard.on_train_start(self)  # `update` is guarded outside of epochs as well
        self.interface = interface
        self._epoch: EpochHooks | None = None
        self._adopted: dict[str, int] = {}
        self._steps = OwnSteps(is_shared=self.runtime.world > 1)
        # whether it is known at which position in the experiment's record this run begins
        self._is_placed = False

    def use_directory(self, directory: Path, settings: Saving) -> None:
        """Let the run write to a directory: metrics, resume points, what ran and how it ended."""
        self.run_dir, self.run.directory = directory, ExperimentRun(directory)
        self.run.num_calls = 1
        self.progress.call = 1
        recorders = [EpochRecorder()] if self.runtime.is_main else []
        self.run.bind([*self.run.callbacks, *recorders, ResumePoints(settings)])

    def finish(self) -> None:
        """The experiment is over."""
        for tracker in self.trackers:
            tracker.finish("finished")
        if isinstance(self.run.directory, ExperimentRun):
            self.run.directory.finish()

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
            if self.run.fingerprint is None and self.optimizers:
                self.run.fingerprint = describe_components(self.run)
            self._steps.watch(self.run.updates)

    def _setup_training(self) -> None:
        """As the core does it; an interface whose hooks train nothing that it knows of has no
        updates."""
        self.setup()
        if self.optimizers:
            super()._setup_training()
        else:
            self.run.bind(with_defaults(self))

    def update(self, loss: Tensor, optimizer: OptimizerChoice = None, **options: Any) -> None:
        """As the core does it, after a look at gradients that another loss left."""
        names = [optimizer_name(self.optimizers, one) for one in listed(optimizer)]
        for name in names:
            check_gradients(self.run.updates.by_name[name].params, name)
        self._steps.num_steps += len(names)  # also where a loss scaler leaves them out
        super().update(loss, names[0] if len(names) == 1 else names, **options)

    def _check_update(self, loss: Any, count: Any = None) -> None:
        """Say what was wrong with a loss that could not be trained."""
        check_loss(loss)
        super()._check_update(loss, count)

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

    def _watch_steps(self) -> None:
        """Nothing: hooks may step optimizers themselves, which `OwnSteps` checks, or step none."""

    def scaler_of(self, optimizer: Optimizer) -> torch.amp.GradScaler:
        """The loss scaler that `update` uses for an optimizer; one that does nothing where it uses
        none."""
        update = self.run.updates.by_name.get(optimizer_name(self.optimizers, optimizer))
        scaler = None if update is None else update.scaler
        return (
            torch.amp.GradScaler(self.runtime.device.type, enabled=False)
            if scaler is None
            else scaler
        )

    def use_scaler(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Let `update` use a loss scaler of the interface's."""
        update = self.run.updates.by_name[optimizer_name(self.optimizers, optimizer)]
        update.scaler = scaler if scaler.is_enabled() else None

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
        return self._epoch is not None

    def train_once(self, data: Any, hooks: EpochHooks) -> None:
        """One epoch over the data, or what is left of one; what an exception cut short starts over
        next time."""
        if self.is_running:
            raise ConfigurationError(
                "train_paired was called in one of its own hooks: call it after the epoch."
            )
        self.adopt()
        self._place()
        self._steps.start_epoch()
        self._epoch = hooks
        try:
            self.train(data, 1)
        except Exception:
            self.progress.go_to_epoch(self.progress.epoch)
            raise
        finally:
            self._epoch = None

    def on_epoch_start(self) -> None:
        assert self._epoch is not None
        self._epoch.start(**self._epoch.keywords.get("on_epoch_start", {}))

    def train_step(self, batch: Any) -> StepResult:
        assert self._epoch is not None
        x, y = as_pair(batch)
        self.run.window.has_stepped = True  # hooks have run: no second try in micro-batches
        # in every step: no call for it
        losses: LossManager | None = getattr(self.interface, "loss_manager", None)
        if losses is not None:
            losses.start_step(self.run.window.size)
        returned = self._epoch.step(
            x, y, self.progress.epoch_step, **self._epoch.keywords.get("train_step", {})
        )
        _check_returned(returned)
        self._steps.has_loss |= isinstance(returned, Tensor) and returned.requires_grad
        result = StepResult.of(returned, self.run.window.size)
        measured = {} if losses is None else losses.end_step()
        metrics = measured | dict(result.metrics)
        return StepResult(
            result.loss, self.run.window.size, metrics, result.count, losses=tuple(measured)
        )

    def on_log(self, rows: list[StepRow]) -> None:
        """At a log point, which all processes reach together, sum up what each of them measured."""
        if (losses := losses_of(self.interface)) is not None and self.runtime.world > 1:
            losses.settle_together(self.runtime.sum_table)

    def on_train_epoch_end(self) -> None:
        assert self._epoch is not None
        self._steps.end_epoch(self.interface.current_epoch, self.models, self.optimizers)
        self._epoch.end(**self._epoch.keywords.get("on_epoch_end", {}))

    # Going on

    def continue_from(self, checkpoint: Checkpoint) -> int:
        """Take the complete state of a run; the number of epochs that it had behind it."""
        epochs = epochs_behind(checkpoint.tree, str(checkpoint.path))
        self.adopt()
        self._setup_training()
        continue_from(
            self.run, checkpoint, accepts_changes=self.interface.config.train.load.accept_changes
        )
        self._is_placed = True
        progress = self.progress
        recorded = self._recorded()
        if recorded is not None and recorded.progress.step > progress.step and self.runtime.is_main:
            logger.warning(
                "%s continues from step %d of %s; the records of steps %d to %d will be replaced "
                "during training.",
                *(
                    self.run_dir,
                    progress.step,
                    checkpoint.path,
                    progress.step + 1,
                    recorded.progress.step,
                ),
            )
        self.runtime.barrier("continuing")
        if self.run.directory is not None and self.runtime.is_main:
            CheckpointStore(self.run.directory.checkpoints).discard(after_update=progress.update)
        return epochs

    def _recorded(self) -> Recorded | None:
        """What the experiment's files have of earlier training, on all processes."""
        run = self.run.directory
        return None if run is None else on_first_process(self.runtime, lambda: read_recorded(run))

    def _place(self) -> None:
        """Before the first epoch: networks that were loaded by themselves go on behind all that was
        recorded."""
        recorded = None if self._is_placed or not self.interface.is_continuing else self._recorded()
        self._is_placed = True
        if recorded is not None:
            recorded.give_to(self.run)


def checked_trackers(given: Any) -> list[Track]:
    """The trackers of the argument `callbacks`, which stay open from one epoch to the next."""
    listed = given if isinstance(given, (list, tuple)) else [given]
    trackers = [(callback, as_tracker(callback)) for callback in listed]
    for callback, tracker in trackers:
        if tracker is None:
            raise ConfigurationError(
                f"callbacks has {callback!r}; expected trackers of loopwright.trackers, as in "
                "callbacks=[TensorBoard('logs')]. Use the hooks of an epoch for everything else, "
                "and `with Profile(): ...` around the epochs to profile."
            )
        tracker.is_kept_open = True
    return [tracker for _, tracker in trackers if tracker is not None]


def as_pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        parts = f" of {len(batch)}" if isinstance(batch, (tuple, list, dict)) else ""
        raise DataError(
            f"A batch of self.train_loader is a {type(batch).__name__}{parts}; paired training "
            "needs (inputs, targets): return two tensors for each item of the data set."
        )
    return batch[0], batch[1]


def _check_returned(value: Any) -> None:
    if value is not None and not isinstance(value, (Tensor, Mapping)):
        raise ConfigurationError(
            f"train_step returned {value!r}, of type {type(value).__name__}; expected nothing, a "
            "tensor, or a dict of values to record by name."
        )
