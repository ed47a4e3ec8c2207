"""The core trainer behind the simple interface: it calls the interface's methods, which a user may
have overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callback import Hook
from ...callbacks.interval import metric_of
from ...callbacks.progress import ProgressDisplay, stop_lines
from ...callbacks.recorder import RunRecorder
from ...data.random import preserved_rng
from ...errors import ConfigurationError, interruption, is_notebook
from ...metrics.progress import Limits
from ...runtime.modes import start_training_mode
from ...trainer import Trainer as CoreTrainer
from ...training import steps as loop
from ...training.first_batch import measured_on
from ...training.program import Words
from ...training.step_checks import StepWatch, Versions, gradient_versions, watch_own_steps
from ...training.update import OptimizerUpdate
from .checks import (
    as_numbers,
    as_pair,
    check_loss_value,
    check_outputs,
    check_step_result,
    unprefixed,
)
from .components import Components, EpochWatch, Guard, OwnSteps, is_clipped
from .kept_models import EpochEnds

if TYPE_CHECKING:
    from .trainer import Trainer

EpochFunction = Callable[[int], Mapping[str, float]]
EpochListener = Callable[[int, dict[str, float]], None]


class Engine(Components):
    """Maps the core's names onto the interface's; batches reach the interface's steps as the loader
    gave them."""

    _words = Words(
        update="super().train_step(batch)",
        accumulate="training.gradient_accumulation_steps",
        clip="call it between `loss.backward()` and `optimizer.step()`, or set "
        "`training.max_grad_norm` in the config",
        no_run_dir="Training",
        record_media="Pass `save_dir=` to `train`.",
    )
    _interface = "simple"
    _plateau_metric = None  # `EpochEnds` looks at what it watches

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
        guard = Guard()
        self.display = Display()
        super().__init__(
            model, optimizer, loss_fn, config, device, scheduler, [guard, self.display]
        )
        if not self.runtime.is_main:
            self.display.style = "silent"
        # single steps are guarded as well, and they come without a `train` call
        guard.on_train_start(self)
        self.interface: Trainer = interface
        self.shown_epoch: int | None = None  # in the place of the run's own count
        self.watched: Callable[[dict[str, float]], str] | None = (
            None  # by ReduceLROnPlateau, in a `train` call
        )
        self._epoch: EpochFunction | None = None
        self._end_epoch: EpochListener | None = None
        self._save: Callable[[], str | None] | None = None
        self.is_passing = False  # over the data, in the core's loop
        self._eval_data: Any = None
        self._left: list[Versions] | None = (
            None  # versions of the gradients after a step of a longer window
        )
        self._has_passed = False
        self._has_said = False
        self.has_said_unsaved = False

    # What the interface's user may have overridden

    def prepare_batch(self, batch: Any) -> Any:
        return batch

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        return as_pair(self.interface._prepare_batch(batch))

    def forward(self, inputs: Any) -> Any:
        outputs = self.interface._forward_pass(inputs)
        if not self.interface._overrides("_compute_loss"):
            check_outputs(outputs)
        return outputs

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        loss = self.interface._compute_loss(outputs, targets)
        check_loss_value(loss, self.interface._overrides("_compute_loss"))
        return loss

    def train_step(self, batch: Any) -> Any:
        """Take the interface's own step without reading its loss from the device, or the step of a
        subclass."""
        if not self.interface._overrides("train_step"):
            return self.learn(batch)
        result = self.interface.train_step(batch)
        check_step_result(result, "train_step")
        return unprefixed(result, "train_")

    @property
    def _has_default_step(self) -> bool:
        return not self.interface._overrides("train_step")

    def _watch_steps(self) -> StepWatch | None:
        return None if self._has_default_step else OwnSteps(self)

    def _check_own_step(self, update: OptimizerUpdate) -> None:
        """Refuse a step of the user's own on a part of a batch; clipping is up to it."""
        step = "optimizer.step() was called"
        if self.run.is_evaluating:
            raise ConfigurationError(
                f"{step} in an evaluation, which would train on the evaluation data: evaluate and "
                "eval_step must not update."
            )
        if self.accumulate > 1:
            raise ConfigurationError(
                f"{step} after every batch by your own train_step or train_epoch, but "
                f"training.gradient_accumulation_steps is {self.accumulate}: call "
                "super().train_step(batch) instead, or remove that setting."
            )
        if update.peers is not None or self.run.num_micro_batches > 1:
            reason = (
                "it is divided among processes"
                if update.peers is not None
                else "memory ran out for all of it"
            )
            raise ConfigurationError(
                f"{step} by your own train_step or train_epoch with the gradients of only a part "
                f"of the batch, because {reason}: call super().train_step(batch) instead of "
                "backward() and step()."
            )
        if update.clip_norm is not None and not self._has_said:
            self._has_said = True
            if not is_clipped(update.params, update.clip_norm):
                self.run.say(
                    f"config: training.max_grad_norm={update.clip_norm:g} is not used: your own "
                    "train_step or train_epoch takes the steps. Call "
                    "torch.nn.utils.clip_grad_norm_ before optimizer.step() there."
                )

    def eval_step(self, batch: Any) -> Any:
        if not self.interface._overrides("eval_step"):
            return self.measure(batch)
        result = self.interface.eval_step(batch)
        check_step_result(result, "eval_step")
        return unprefixed(result, "eval_")

    def learn(self, batch: Any) -> Any:
        """Take the core's step, with the interface's methods for its parts."""
        return super().train_step(batch)

    def learn_apart(self, batch: Any) -> Any:
        """Take the step for a method of the user's, whose own backward() before it must not go into
        the update."""
        updates = [update for update in self.run.updates.by_name.values() if update.peers is None]
        if self.accumulate == 1 and self.run.num_micro_batches == 1:
            for update in self.run.updates.by_name.values():
                update.zero()
            return self.learn(batch)
        if self._left is not None and self._left != [
            gradient_versions(update) for update in updates
        ]:
            raise ConfigurationError(
                "Gradients were changed between two calls of super().train_step(batch), which "
                "belong to one update (training.gradient_accumulation_steps is "
                f"{self.accumulate}): by your own backward(), zero_grad() or clip_grad_norm_. "
                "Remove that call, use torch.autograd.grad instead, or remove that setting."
            )
        self._left = None
        result = self.learn(batch)
        self._left = [gradient_versions(update) for update in updates]
        return result

    def measure(self, batch: Any) -> Any:
        """Take the core's evaluation step, with the interface's methods for its parts."""
        return super().eval_step(batch)

    # Steps and epochs

    def ready_for_step(self) -> None:
        """Prepare a single step, outside of `train` as well as inside."""
        if not self.run.updates.by_name:
            self._setup_training()
        self._adopt_replaced()
        self.run.updates.refresh(self.modules.values())
        start_training_mode(self.modules.values(), self.optimizers.values())

    def single_eval_mode(self) -> AbstractContextManager[None]:
        """Eval mode for one batch; inside an evaluation of the loop, which already has it,
        nothing."""
        return nullcontext() if self.run.phases else self._eval_mode()

    @property
    def is_running(self) -> bool:
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
        if self.is_running:
            raise ConfigurationError(
                "train() was called while this trainer is training: call it after training has "
                "ended."
            )
        self._epoch = epoch
        self._end_epoch = end_epoch
        self._save = save
        try:
            self.train(data, num_epochs)
        finally:
            self._epoch = None
            self._end_epoch = None
            self._save = None
            self.progress.go_to_epoch(self.progress.epoch)

    def record_in(self, save_dir: str | Path | None) -> None:
        """Record the run in the directory of its checkpoints; without one, go on as before."""
        if save_dir is None or not self.runtime.is_main:
            return
        others = [
            callback for callback in self.run.callbacks if not isinstance(callback, RunRecorder)
        ]
        recorder = self._recorder
        if recorder is None or recorder.own_path != Path(save_dir):
            recorder = RunRecorder("warn", directory=save_dir, existing="replace")
        self.run.bind([*others, recorder])

    @property
    def _recorder(self) -> RunRecorder | None:
        return next(
            (callback for callback in self.run.callbacks if isinstance(callback, RunRecorder)), None
        )

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
        with EpochWatch(self) as watch:
            metrics = as_numbers(self._epoch(number), "train_epoch")
        watch.check_per_batch()
        if not watch.has_trained:
            self.run.say(
                f"Nothing was trained in epoch {start + 1}: train_epoch changed no weight of the "
                "model. Call self.train_step(batch) in it for each batch, or "
                "self.optimizer.step()."
            )
        self.progress.go_to_epoch(start + 1)
        for name in [name for name in self.schedules if not watch.has_moved(name)]:
            self._step_epoch(name, metrics)
        if not self._has_passed:  # no pass of ours, which would have shown its end
            self.display.on_epoch_end(self, metrics)
        self._record_own(metrics)
        self._end_epoch(number, metrics)
        self.progress.go_to_epoch(start + 1)  # a callback may have trained, too
        self.on_update_end()  # a loop of the user's own did not look at signals
        if self.run.is_interrupted:
            self._leave()

    def _schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Do nothing yet: the interface's `train_epoch` may still add metrics, or pass over the
        data again."""

    def _step_epoch(self, name: str, metrics: dict[str, float]) -> None:
        """Step a scheduler that counts epochs; one that watches a metric gets that of the best
        model."""
        schedule = self.schedules[name]
        if schedule.interval != "epoch":
            return
        if schedule.watches and schedule.metric is None:
            default = "eval_loss" if "eval_loss" in metrics else "train_loss"
            watched = default if self.watched is None else self.watched(metrics)
            schedule.scheduler.step(metric_of(metrics, watched, "ReduceLROnPlateau"))
        else:
            schedule.step(metrics)

    def pass_over(self, data: Any, eval_data: Any) -> dict[str, float]:
        """Train on all batches of the data once, then evaluate; the metrics under the interface's
        names."""
        is_own = data is self.run.train_data and self.run.train_stream is not None
        stream = self.run.train_stream if is_own else self._open(data, None, shuffle=True)
        assert stream is not None
        epoch = self.progress.epoch
        self._eval_data = eval_data
        self._has_passed = True
        try:
            self.is_passing = True
            loop.train_epoch(self.run, stream, Limits())
        finally:
            self._eval_data = None
            self.is_passing = False
            if not is_own:
                stream.close()
        # no metrics that a subclass could go on with
        if self.run.is_interrupted and self.progress.epoch == epoch:
            self._leave()
        row = self.history.epochs[-1]
        return {
            name if name.startswith("eval_") else f"train_{name}": value
            for name, value in row.items()
        }

    def _leave(self) -> None:
        """End the program with the signal's exit code, after saving if there is a `save_dir`.

        At once and not at the end of the core's loop: a subclass's `train_epoch` cannot go on
        without the metrics.
        """
        self.run.signals.is_saving = True
        saved = None if self._save is None else self._save()
        what = "nothing was saved, because train was called without save_dir"
        what = (
            what
            if saved is None
            else f"saved; call load_checkpoint({saved!r}) and train to continue"
        )
        epoch = self.progress.epoch
        when = f"in epoch {epoch + 1}" if self.progress.in_epoch else f"after epoch {epoch}"
        line = f"{self.run.signals.name} {when}: {what}."
        if not is_notebook():  # which shows the line of the exception
            self.run.say(line)
        raise interruption(self.run.signals.exit_code, line)

    def on_update_end(self) -> None:
        if self.run.signals.take_save() and self._save is not None:
            self._save()

    def on_train_epoch_end(self) -> None:
        """Evaluate through the interface, so that a subclass's `evaluate` counts; it may leave
        modes and seeds changed."""
        if self._eval_data is None:
            return
        handles = [
            handle
            for update in self.run.updates.by_name.values()
            for handle in watch_own_steps(update, self._check_own_step)
        ]
        try:
            with self._eval_mode(), preserved_rng():
                metrics = unprefixed(
                    as_numbers(self.interface.evaluate(self._eval_data), "evaluate"), "eval_"
                )
        finally:
            for handle in handles:
                handle.remove()
        self.log({f"eval_{name}": value for name, value in metrics.items()})

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        if isinstance(self._end_epoch, EpochEnds):
            self._end_epoch.callbacks[:] = map(function, self._end_epoch.callbacks)

    def _timed_methods(self) -> list[tuple[object, str, str]]:
        ends = self._end_epoch
        own = (
            [(ends, name, "checkpoints") for name in ("_save", "save_now")]
            if isinstance(ends, EpochEnds)
            else []
        )
        return [*super()._timed_methods(), *own]

    def names_of_one_batch(self, data: Any) -> set[str]:
        """The metrics that an evaluation of this data will have, found out with its first batch."""
        stream = self._open(data, None, shuffle=False)
        try:
            return measured_on(self.run, stream)
        finally:
            stream.close()


class Display(ProgressDisplay):
    """Shows the number that `train_epoch` was given, where it is called on its own."""

    def _epoch_number(self, trainer: CoreTrainer, ended: bool = False) -> str:
        shown = trainer.shown_epoch if isinstance(trainer, Engine) else None
        return super()._epoch_number(trainer, ended) if shown is None else f"{shown}"

    def _last_lines(self, trainer: CoreTrainer) -> list[str]:
        """Nothing of the best epoch: the interface's `train` looks for it by itself."""
        return stop_lines(trainer)
