"""The epochs and steps of a run: methods that a subclass may replace whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...metrics.progress import Limits
from ...training.run import TrainingRun
from ...training.step_checks import check_clipping, scheduler_position
from ...training.update import Window
from .._shared import LoggingTrainer, is_overridden
from .callbacks import CallbackHandler, StopTrainingError
from .callbacks.recording import recorded
from .checks import WeightsWatch, checked_output, refuse_second_backward, step_obstacle
from .loaders import TrainingLoader, prepared
from .stages import Stages
from .tracking import LossTracker

if TYPE_CHECKING:
    from pathlib import Path

    from .trainer import Trainer


class Epochs(LoggingTrainer, Stages):
    """The order of the stages. A method that is replaced takes its batches from the loader that it
    is given.

    Every batch taken from the training loader is a step of the run, so limits, progress and
    training states stay right also in a loop that the user wrote.
    """

    callback_handler: CallbackHandler
    _train_dataloader: Any
    _eval_dataloader: Any
    _loss_tracker: LossTracker

    @property
    def _logged_run(self) -> TrainingRun:
        return self._core.run

    # A run

    def _execute_run(self: Trainer, resume_from: str | Path | None) -> None:  # type: ignore[misc]
        from . import saving

        core = self._core
        core.waiting_state = None if resume_from is None else saving.load_run(self, resume_from)
        config = self.run_config
        core.run.set_limits(Limits(config.num_epochs, config.max_num_train_steps))
        with recorded(self):
            self._execute_epochs(is_resumed=resume_from is not None)

    def _execute_epochs(self: Trainer, *, is_resumed: bool) -> None:  # type: ignore[misc]
        core = self._core
        if not self._overrides("_run_training"):
            self._run_training()
            return
        if is_resumed:
            if core.stage != "steps":
                core.end_epoch()
            self.print(
                f"Resumed in epoch {self.run_history.current_epoch} with your own "
                "`_run_training`: its epochs must be range(self.run_history.current_epoch - 1, "
                "self.run_config.num_epochs)."
            )
        watch = WeightsWatch(self)
        with core.together():
            self._run_training()
            core.drop_steps()
        watch.check("_run_training")

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Let callbacks that have a method `run_failed` know of an exception that ends the run."""
        try:
            yield
        except BaseException as error:
            self.callback_handler.call_event("run_failed", self, error)
            raise

    def _run_training(self: Trainer) -> None:  # type: ignore[misc]
        """Run the start of a training run, its epochs up to a limit or a stop, and its end."""
        core = self._core
        call = self.callback_handler.call_event
        with core.looking():
            self.training_run_start()
            call("on_training_run_start", self)
        is_resumed = core.waiting_state is not None
        core.load_callbacks()
        with core.together():
            try:
                if is_resumed:
                    self._check_resumed()
                if core.resumed_event is not None:
                    self.callback_handler.finish_event(*core.resumed_event, self)
                while core.has_work and not self._run_epoch():
                    pass
            except StopTrainingError as error:
                # first, for states that are saved from here on
                core.run.stop(str(error) or type(error).__name__)
                self._stop(error)
        self.training_run_end()
        self.callback_handler.call_event("on_training_run_end", self)

    def _check_resumed(self) -> None:
        """End a run that is resumed after it was stopped, before anything of it is trained.

        A callback that had ended the run decides again: its settings may be others now.
        """
        core = self._core
        reason = self.callback_handler.why_over()
        if reason is not None:
            raise StopTrainingError(reason)
        if core.was_ended_by_callback:
            core.run.train_on()
        elif core.run.stop_reason is not None:
            raise StopTrainingError(
                f"Nothing to train: the resumed run was stopped ({core.run.stop_reason}). To "
                "train on, pass an earlier training state to `resume_from`, or load this one "
                "with `load_training_state` and train a new run."
            )

    def _stop(self, error: StopTrainingError) -> None:
        self._core.drop_steps()
        self.print(error)
        self.callback_handler.call_event("on_stop_training_error", self)

    def _run_epoch(self: Trainer) -> bool:  # type: ignore[misc]
        """An epoch with its evaluation, or what a resumed run has left of it; True when it was the
        last."""
        core = self._core
        is_last = False
        if core.stage == "steps":
            watch = None if core.is_checked else WeightsWatch(self)
            is_last = bool(self._run_train_epoch(self._train_dataloader))
            core.end_train_epoch()
            if watch is not None:
                watch.check("_run_train_epoch")
                core.is_checked = True
        if core.stage == "eval" and self._eval_dataloader is not None:
            self._run_eval_epoch(self._eval_dataloader)
        if core.stage != "over":
            core.stage = "over"
            self.training_run_epoch_end()
            self.callback_handler.call_event("on_training_run_epoch_end", self)
        core.end_epoch()
        core.leave_if_interrupted()
        return is_last

    # A training epoch

    def _run_train_epoch(self, train_dl: Any) -> bool | None:
        """Run a training epoch and record `train_loss_epoch`. Returns whether `max_num_train_steps`
        is reached."""
        core = self._core
        call = self.callback_handler.call_event
        train_dl = prepared(core, train_dl, TrainingLoader)
        if core.begin_epoch(train_dl):
            self.train_epoch_start()
            self._loss_tracker.reset()
            call("on_train_epoch_start", self)
        with core.steps():
            for step, batch in enumerate(train_dl, start=core.progress.epoch_step):
                call("on_train_step_start", self)
                self._perform_forward_and_backward_passes(batch, step)
                if core.run.window.is_last:
                    self._update_weights()
        self.run_history.update_metric("train_loss_epoch", core.mean_loss())
        self.train_epoch_end()
        self.callback_handler.call_event("on_train_epoch_end", self)
        return core.has_reached_max_steps

    def _perform_forward_and_backward_passes(self, batch: Any, step: int) -> None:
        """Compute the loss of a batch, call `on_train_step_end`, then `backward_step` with the
        divided loss."""
        core = self._core
        calculate = self.calculate_train_batch_loss
        returned = (
            calculate(batch)
            if core.run.progress.step
            else check_clipping(core.run, calculate, batch)
        )
        output = checked_output(returned, "calculate_train_batch_loss")
        self.callback_handler.call_event(
            "on_train_step_end", self, batch=batch, batch_output=output, step=step
        )
        loss = output["loss"]
        self._core.report(loss, output.get("batch_size", self._core.run.window.size))
        self._loss_tracker.is_reported = True
        share = self._share_of_update(loss, "num_items_in_batch" in output)
        try:
            if not self._has_own_backward or not core.is_in_step:
                self.backward_step(share)
            else:
                self._take_own_backward(loss, share)
        except RuntimeError as error:
            refuse_second_backward(error, core.run.progress.step)
            raise

    def _take_own_backward(self, loss: Tensor, share: Tensor) -> None:
        gradients = self._core.gradients
        gradients.note(loss)
        self._core.scheduler_position = scheduler_position(self.scheduler)
        with gradients.own_backward(step_obstacle(self.run_config)):
            self.backward_step(share)

    def _share_of_update(self, loss: Tensor, is_token_mean: bool) -> Tensor:
        """The loss divided so that the gradients of a whole update are those of one big batch.

        It is divided here and not in the update's `backward`, since `backward_step` gets the
        divided loss.
        """
        config = self.run_config
        core = self._core
        window = (
            core.run.window
            if core.is_in_step
            else Window(divisor=float(config.gradient_accumulation_steps))
        )
        if is_token_mean and config.is_distributed and config.gradient_accumulation_steps > 1:
            # it is a part of all processes' mean, of which an average is taken
            loss = loss * config.num_processes
        return window.share_of(loss)

    def _update_weights(self) -> None:
        """The end of a window of batches: one update of the weights."""
        gradients = self._core.gradients
        gradients.complete()
        if self.run_config.gradient_clip_value is not None:
            self._clip_gradients()
        if not self._has_own_backward:
            self._core.scheduler_position = scheduler_position(self.scheduler)
        self.optimizer_step()
        if not gradients.was_skipped and not self._is_scheduled():
            self.scheduler_step()
        self.optimizer_zero_grad()

    def _clip_gradients(self) -> None:
        """Clip the complete gradients, once before each step; only called in runs with a
        `gradient_clip_value`."""
        self._core.gradients.clip()

    def _is_scheduled(self) -> bool:
        """Whether the user's `backward_step` or `optimizer_step` has stepped the scheduler, as the
        default would."""
        is_default = not is_overridden(self, "scheduler_step", Stages)
        return is_default and scheduler_position(self.scheduler) != self._core.scheduler_position

    @property
    def _has_own_backward(self) -> bool:
        return is_overridden(self, "backward_step", Stages)

    # An evaluation

    def _run_evaluation(self) -> None:
        """Run the start of an evaluation run, one epoch, and its end."""
        self.evaluation_run_start()
        self.callback_handler.call_event("on_evaluation_run_start", self)
        try:
            self._run_eval_epoch(self._eval_dataloader, is_training=False)
        except StopTrainingError as error:
            self._stop(error)
        self.evaluation_run_end()
        self.callback_handler.call_event("on_evaluation_run_end", self)

    def _run_eval_epoch(
        self, valid_dl: Any, is_training: bool = True, is_intermediate: bool = False
    ) -> None:
        """Run an evaluation epoch; afterwards modes and random generators are what they were
        before."""
        core = self._core
        if is_intermediate and not core.is_intermediate:
            with core.intermediate():
                self._run_eval_epoch(valid_dl, is_training)
            return
        name = "eval_loss_epoch" if is_training else "evaluation_loss"
        core.run_evaluation(valid_dl, "intermediate_eval_loss" if core.is_intermediate else name)

    # Losses, for epochs of the user's own

    def _update_loss_tracker(self, batch_loss: Tensor, batch_size: int) -> None:
        """Add the loss of a batch to the mean of the epoch, in an epoch of your own."""
        if not self._core.gathering.is_stand_in:
            self._loss_tracker.update(batch_loss.detach().mean().item(), batch_size)

    def _add_epoch_loss_to_run_history(self, metric_name: str) -> None:
        """Record the mean loss of the epoch over all processes, in an epoch of your own."""
        tracker = self._loss_tracker
        if tracker.is_reported:
            self.run_history.update_metric(metric_name, self._core.mean_loss())
            return
        total, count = self._runtime.sum_table(
            {"loss": (tracker.total_loss, tracker.running_count)}
        )["loss"]
        self.run_history.update_metric(metric_name, total / count if count else nan)
