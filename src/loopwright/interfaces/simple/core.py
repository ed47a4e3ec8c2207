"""The core trainer behind the simple interface: it calls the interface's methods, which a user may
have overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..._torch_compat import version_of
from ...callback import Hook
from ...callbacks.nonfinite import NonFiniteGuard
from ...callbacks.progress import ProgressDisplay, stop_lines
from ...callbacks.recorder import RunRecorder
from ...data.random import preserved_rng
from ...errors import ConfigurationError, interruption, is_notebook
from ...metrics.progress import Limits
from ...metrics.result import StepResult
from ...optim.build import Interval, build_schedule
from ...runtime import resolve_runtime
from ...runtime.base import detect_device
from ...runtime.modes import start_training_mode
from ...trainer import Trainer as CoreTrainer
from ...training import steps as loop
from ...training.own_steps import OwnSteps, gradients, is_paced_by_user, scheduler_position
from ...training.program import MessageNames
from ...training.step_checks import SchedulerWatch, StepWatch, Versions, gradient_versions
from ...training.supervised import checked_pair
from ...training.updates import Updates
from .._shared import InterfaceCore, InterfaceNames, check_idle
from .config import TrainingSettings
from .epoch_ends import EpochEnds

if TYPE_CHECKING:
    from .trainer import Trainer

EpochFunction = Callable[[int], Mapping[str, float]]
EpochListener = Callable[[int, dict[str, float]], None]


NAMES = InterfaceNames(
    interface="simple",
    messages=MessageNames(
        update="super().train_step(batch)",
        accumulate="training.gradient_accumulation_steps",
        nonfinite="Lower the learning rate, set training.max_grad_norm in the config, or look for "
        "bad samples.",
        clip="call it between `loss.backward()` and `optimizer.step()`, or set "
        "`training.max_grad_norm` in the config",
        no_run_dir="Training",
        record_media="Pass `save_dir=` to `train`.",
    ),
)


class SimpleCore(InterfaceCore):
    """Maps the core's names onto the interface's; batches reach the interface's steps as the loader
    gave them."""

    names = NAMES

    def __init__(
        self,
        interface: Trainer,
        *,
        model: nn.Module,
        optimizer: Any,
        loss_fn: Any,
        config: Any,
        device: torch.device | None,
        scheduler: Any,
    ) -> None:
        self.interface: Trainer = interface
        self.settings = TrainingSettings.of(config)
        self.config = config
        self.display = Display()
        # the metric that ReduceLROnPlateau watches in a `train` call
        self.watched: Callable[[dict[str, float]], str] | None = None
        self.is_passing = False  # over the data, in the core's loop
        self.has_said_unsaved = False
        self._recorder: RunRecorder | None = None
        self._stepped: SchedulerWatch | None = None  # where `train_epoch` left the schedulers
        self._paced: dict[str, int] = {}  # schedules whose cadence is the config's, by their ids
        self._epoch: EpochFunction | None = None
        self._end_epoch: EpochListener | None = None
        self._save: Callable[[], str | None] | None = None
        self._eval_data: Any = None
        self._left: list[Versions] = []  # of gradients, after a step of a longer window
        self._has_passed = False
        self._own_steps: OwnSteps | None = None  # in a `train_epoch` of the user's own
        guard = Guard()
        super().__init__(
            model,
            self.settings.build_optimizer if optimizer is None else optimizer,
            loss_fn,
            scheduler=scheduler,
            callbacks=[guard, self.display],
            accumulate=self.settings.gradient_accumulation_steps or 1,
            clip_norm=self.settings.max_grad_norm,
            compile=self.settings.compile,
            runtime=device,
            seed=None,
        )
        if not self.runtime.is_main:
            self.display.style = "silent"
        # single steps are guarded as well, and they come without a `train` call
        guard.on_train_start(self)

    # Components, each of which can be replaced

    def configure_optimizers(self) -> None:
        super().configure_optimizers()
        self._settle()

    def use(self, config: Any) -> None:
        """Use another config from now on."""
        settings = TrainingSettings.of(config)
        self.settings = settings
        self.config = config
        self.accumulate = settings.gradient_accumulation_steps or 1
        self.clip_norm = settings.max_grad_norm
        for update in self.run.updates.by_name.values():
            update.clip_norm = self.clip_norm
        self._settle()

    def set_optimizer(self, optimizer: Optimizer) -> None:
        self.optimizers["optimizer"] = optimizer
        self._settle()

    def set_scheduler(self, given: Any) -> None:
        """Another scheduler, or none."""
        self._stepped = None
        self._paced = {}
        if given is None:
            self.schedules.pop("scheduler", None)
        else:
            self.schedules["scheduler"] = build_schedule(given, self.optimizers.get("optimizer"))
            # so that a first one is noticed as another one is
            self._components.trained.setdefault("schedule 'scheduler'", None)
        self._set_cadence()

    def set_device(self, device: torch.device | None) -> None:
        """Move the models, the optimizers' state and all further batches to a device."""
        device = detect_device() if device is None else device
        if device == self.runtime.device:
            return
        if self.is_running or self.runtime.world > 1:
            raise ConfigurationError(
                "device-in-run",
                f"device={str(device)!r} was assigned while training, or in a run of several "
                "processes: assign it earlier, or leave it out.",
            )
        self.runtime = resolve_runtime(device, self.runtime.precision)
        # made anew for that device by the next step
        self.run.updates = Updates({}, self.run.window)
        for module in self.modules.values():
            self.runtime.place(module)
        for optimizer in self.optimizers.values():
            # which puts its state beside its parameters
            optimizer.load_state_dict(optimizer.state_dict())

    def _settle(self) -> None:
        """Apply the settings to optimizers and schedulers, and say which were not used."""
        for optimizer in self.optimizers.values():
            line = self.settings.settle_weight_decay(optimizer)
            if line is not None:
                self.run.say(line)
        self._set_cadence()

    def _set_cadence(self) -> None:
        """Have schedulers stepped per batch or per epoch, where the config says so."""
        per_batch = self.settings.scheduler_step_per_batch
        every: Interval | None = None if per_batch is None else "update" if per_batch else "epoch"
        for name, schedule in self.schedules.items():
            if schedule.every is not None and id(schedule) != self._paced.get(name):
                continue
            if schedule.watches and per_batch:
                raise ConfigurationError(
                    "plateau-per-batch",
                    "ReduceLROnPlateau watches a metric of whole epochs and cannot be stepped "
                    "after each batch: set training.scheduler_step_per_batch to False, or use "
                    "another scheduler.",
                )
            self.schedules[name] = replace(schedule, every=every)
            self._paced[name] = id(self.schedules[name])

    def check_stepped_once(self) -> None:
        """Refuse a loop that steps a scheduler again after `train_epoch`, which has stepped it."""
        if self._stepped is not None:
            self._stepped.check("a loop around train_epoch")

    def note_stepped(self) -> None:
        """Remember where the schedulers that count epochs are."""
        schedules = self.schedules.items()
        of_epochs = {name: schedule for name, schedule in schedules if schedule.interval == "epoch"}
        self._stepped = SchedulerWatch(of_epochs)

    # What the interface's user may have overridden

    def prepare_batch(self, batch: Any) -> Any:
        return batch

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return checked_pair(self.interface._prepare_batch(batch), "_prepare_batch")

    def forward(self, inputs: Any) -> Any:
        return self.interface._forward_pass(inputs)

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        return self.interface._compute_loss(outputs, targets)

    def train_step(self, batch: Any) -> Any:
        """Take the interface's own step without reading its loss from the device, or the step of a
        subclass."""
        if self._has_default_step:
            return super().train_step(batch)
        return as_result(self.interface.train_step(batch), "train_step", "train_")

    def eval_step(self, batch: Any) -> Any:
        if not self.interface._overrides("eval_step"):
            return super().eval_step(batch)
        return as_result(self.interface.eval_step(batch), "eval_step", "eval_")

    @property
    def _has_default_step(self) -> bool:
        return not self.interface._overrides("train_step")

    def train_step_for_user(self, batch: Any) -> Any:
        """Take the core's step for a method of the user's, whose own backward() before it must not
        go into the update."""
        updates = self.run.updates.by_name.values()
        if self.accumulate == 1 and self.run.num_micro_batches == 1:
            for update in updates:
                update.zero()
        elif self._left and self._left != [gradient_versions(update) for update in updates]:
            raise ConfigurationError(
                "gradients-in-window",
                "Gradients were changed between two calls of super().train_step(batch), which "
                "belong to one update (training.gradient_accumulation_steps is "
                f"{self.accumulate}): by your own backward(), zero_grad() or clip_grad_norm_. "
                "Remove that call, use torch.autograd.grad instead, or remove that setting.",
            )
        self._left = []
        result = super().train_step(batch)
        if self.runtime.world == 1:
            self._left = [gradient_versions(update) for update in updates]
        if self._own_steps is not None:
            self._own_steps.end_step()
        return result

    def _watch_steps(self) -> StepWatch | None:
        return None if self._has_default_step else StepChecks(self)

    # Steps and epochs

    def ready_for_step(self) -> None:
        """Prepare a single step, outside of `train` as well as inside."""
        if not self.run.updates.by_name:
            self._setup_training()
        self._adopt_replaced()
        self.run.updates.refresh(self.modules.values())
        start_training_mode(self.modules.values(), self.optimizers.values())

    @property
    def is_running(self) -> bool:
        """Whether a `train` or `train_epoch` call is under way."""
        return self._epoch is not None

    def run_epochs(
        self,
        data: Any,
        num_epochs: int,
        epoch: EpochFunction,
        end_epoch: EpochListener,
        save: Callable[[], str | None] | None = None,
    ) -> None:
        """Call `epoch` for each epoch (from 0) inside one `train` call, and then `end_epoch` with
        what it returned.

        An epoch that an exception cut short starts over in the next call. `save` is called after an
        update in which a signal requested it.
        """
        check_idle(self.is_running, "train()")
        self._epoch = epoch
        self._end_epoch = end_epoch
        self._save = save
        try:
            self.train(data, num_epochs)
        finally:
            self._epoch = None
            self._end_epoch = None
            self._save = None
            self._own_steps = None
            self.progress.go_to_epoch(self.progress.epoch)

    def record_in(self, save_dir: str | Path | None) -> None:
        """Record the run in the directory of its checkpoints; without one, go on as before."""
        if save_dir is None or not self.runtime.is_main:
            return
        others = [callback for callback in self.run.callbacks if callback is not self._recorder]
        if self._recorder is None or self._recorder.own_path != Path(save_dir):
            self._recorder = RunRecorder("warn", directory=save_dir, existing="replace")
        self.run.bind([*others, self._recorder])

    def _record_own(self, metrics: Mapping[str, float]) -> None:
        """Record what a `train_epoch` of the user's own returns besides what the core's pass has
        measured."""
        row = self.history.epochs[-1] if self._has_passed else {}
        known = {*row, *(f"train_{name}" for name in row)}
        own = {name: value for name, value in metrics.items() if name not in known}
        if self._recorder is not None and own:
            self._recorder.on_epoch_end(self, own)

    def _train_epoch(self) -> None:
        """Count one epoch, whatever a subclass does in it: its own loop, one pass over the data, or
        two.

        So the count is set here, whatever the core's loop, which runs the passes, has counted.
        """
        assert self._epoch is not None
        assert self._end_epoch is not None
        start = self.progress.epoch
        number = self.progress.epoch - self.progress.call_epoch
        self._has_passed = False
        self.display.on_epoch_start(self)
        before = self._scheduler_positions()
        changes = self._count_changes()
        with OwnSteps(self.run) as self._own_steps:
            metrics = as_numbers(self._epoch(number), "train_epoch")
        self._own_steps = None
        if self._count_changes() == changes:
            self.run.say(
                f"Nothing was trained in epoch {start + 1}: train_epoch changed no weight of the "
                "model. Call self.train_step(batch) in it for each batch, or "
                "self.optimizer.step()."
            )
        self.progress.go_to_epoch(start + 1)
        self._step_schedules(before, metrics)
        if not self._has_passed:  # no pass of ours, which would have shown its end
            self.display.on_epoch_end(self, metrics)
        self._record_own(metrics)
        self._end_epoch(number, metrics)
        self.progress.go_to_epoch(start + 1)  # a callback may have trained, too
        self.on_update_end()  # a loop of the user's own did not look at signals
        if self.run.is_interrupted:
            self._leave()

    def _scheduler_positions(self) -> dict[str, Any]:
        return {
            name: scheduler_position(schedule.scheduler)
            for name, schedule in self.schedules.items()
        }

    def _count_changes(self) -> int:
        """The number of updates and of other changes of the weights so far."""
        params = (param for module in self.modules.values() for param in module.parameters())
        return self.run.updates.calls + sum(version_of(param) for param in params)

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Do nothing yet: the interface's `train_epoch` may still add metrics, or pass over the
        data again."""

    def _step_schedules(self, before: Mapping[str, Any], metrics: dict[str, float]) -> None:
        """Step the schedulers that count epochs and that the epoch has left alone; one that watches
        a metric gets that of the best model."""
        for name, position in self._scheduler_positions().items():
            schedule = self.schedules[name]
            is_stepped = position != before.get(name) or schedule.interval == "update"
            if is_stepped or is_paced_by_user(self.run, schedule.scheduler):
                continue
            if schedule.watches and schedule.metric is None:
                default = "eval_loss" if "eval_loss" in metrics else "train_loss"
                watched = default if self.watched is None else self.watched(metrics)
                schedule = replace(schedule, metric=watched)
            schedule.step(metrics)

    def pass_over(self, data: Any, eval_data: Any) -> dict[str, float]:
        """Train on all batches of the data once, then evaluate; the metrics under the interface's
        names."""
        is_own = data is self.run.data.given and self.run.data.train_stream is not None
        stream = self.run.data.train_stream if is_own else self._open(data, None, shuffle=True)
        assert stream is not None
        epoch = self.progress.epoch
        self._eval_data = eval_data
        self._has_passed = True
        self.is_passing = True
        if self._own_steps is not None:
            self._own_steps.__exit__(None)  # the loop watches the steps in it
        try:
            loop.train_epoch(self.run, stream, Limits())
        finally:
            self._eval_data = None
            self.is_passing = False
            if not is_own:
                stream.close()
        if self._own_steps is not None:
            self.run.window.divisor = 1.0
            self._own_steps.__enter__()
        # no metrics that a subclass could go on with
        if self.run.is_interrupted and self.progress.epoch == epoch:
            self._leave()
        return {
            name if name.startswith("eval_") else f"train_{name}": value
            for name, value in self.history.epochs[-1].items()
        }

    def _leave(self) -> None:
        """End the program with the signal's exit code, after saving if there is a `save_dir`.

        At once and not at the end of the core's loop: a subclass's `train_epoch` cannot go on
        without the metrics.
        """
        self.run.stopping.signals.is_saving = True
        saved = None if self._save is None else self._save()
        what = f"saved; call load_checkpoint({saved!r}) and train to continue"
        if saved is None:
            what = "nothing was saved, because train was called without save_dir"
        signals = self.run.stopping.signals
        line = f"{signals.name} after update {self.progress.update}: {what}."
        if not is_notebook():  # which shows the line of the exception
            self.run.say(line)
        raise interruption(signals.exit_code, line)

    def on_update_end(self) -> None:
        if self.run.stopping.signals.take_save() and self._save is not None:
            self._save()

    def on_train_epoch_end(self) -> None:
        """Evaluate through the interface, so that a subclass's `evaluate` counts; it may leave
        modes and seeds changed."""
        if self._eval_data is None:
            return
        with self._eval_mode(), preserved_rng():
            metrics = as_numbers(self.interface.evaluate(self._eval_data), "evaluate")
        self.log({f"eval_{name}": value for name, value in unprefixed(metrics, "eval_").items()})

    # Callbacks

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        if isinstance(self._end_epoch, EpochEnds):
            self._end_epoch.callbacks[:] = map(function, self._end_epoch.callbacks)

    def _timed_methods(self) -> list[tuple[object, str, str]]:
        methods = super()._timed_methods()
        if isinstance(self._end_epoch, EpochEnds):
            methods += [(self._end_epoch, name, "checkpoints") for name in ("_save", "save_now")]
        return methods


class Guard(NonFiniteGuard):
    """The core's, under the name that checkpoints of this interface have its state by."""


class Display(ProgressDisplay):
    """Shows nothing of the best epoch, which the interface's `train` looks for by itself."""

    def _last_lines(self, trainer: CoreTrainer) -> list[str]:
        return stop_lines(trainer)


class StepChecks(StepWatch):
    """Checks the steps of an overridden `train_step`, which may also call backward() for a later
    optimizer.step()."""

    def _check_first(self, result: StepResult) -> None:
        has_gradients = any(gradients(update) for update in self._updates.by_name.values())
        if not has_gradients or self._updates.calls != self._num_calls:
            super()._check_first(result)


def as_result(returned: Any, method: str, prefix: str) -> Any:
    """What an overridden step returned; its metrics have the core's names."""
    if isinstance(returned, (Tensor, int, float, StepResult)):
        return returned
    check_metrics(returned, method)
    return unprefixed(returned, prefix)


def check_metrics(returned: Any, method: str) -> None:
    """Refuse a returned value that is no dict of metrics which can be averaged; tensors are not
    read from their device."""
    values = returned.values() if isinstance(returned, Mapping) else (None,)
    if not all(
        value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, SupportsFloat)
        for value in values
    ):
        raise ConfigurationError(
            "metrics-not-numbers",
            f"`{method}` returned {returned!r:.80}; return a dict of metrics that are numbers, "
            "such as {'loss': loss.item()}.",
        )


def unprefixed(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Metrics without the prefix that their names get in the history, where a method has written it
    already."""
    return {
        name if name.removeprefix(prefix) in metrics else name.removeprefix(prefix): value
        for name, value in metrics.items()
    }


def as_numbers(returned: Any, method: str) -> dict[str, float]:
    """The metrics that an overridden method returned, as floats."""
    check_metrics(returned, method)
    return {name: float(value) for name, value in returned.items()}
