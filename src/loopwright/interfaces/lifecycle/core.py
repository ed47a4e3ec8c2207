"""The core trainer of one run: the core's loop gives the steps, and the interface's stages are
their body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ...callback import Hook
from ...data.open import Stream
from ...data.random import preserved_rng
from ...data.workers import workers_explained
from ...errors import interruption
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...runtime import Runtime
from ...runtime.modes import evaluating, start_training_mode
from ...training import steps as loop
from ...training.evaluate import evaluate, measuring_nothing
from ...training.program import Words
from . import saving
from .checks import checked_output
from .components import Components
from .loaders import EvaluationLoader, TrainingLoader, prepared

if TYPE_CHECKING:
    from .callbacks.recording import EpochMetrics
    from .trainer import Trainer

Stage = Literal["steps", "eval", "end", "over"]


class Core(Components):
    """Translates a step of the core into the stages of document 002, in their order.

    `stage` is what comes next in the epoch, once the event under way is over; a training state
    holds it, so that a resumed run takes up an epoch exactly where it was.
    """

    _interface = "lifecycle"
    _words = Words(
        record_media="Add `RecordRunCallback(run_dir)` to the callbacks.",
        clip="they come with `backward_step`. Clip in `optimizer_step`, or pass "
        "`gradient_clip_value=` to `train`",
    )
    _plateau_metric = None

    def __init__(self, interface: Trainer, runtime: Runtime, *, trains: bool = False) -> None:
        super().__init__(interface, runtime, trains=trains)
        self.stage: Stage = "steps"
        self.resumed_event: tuple[str, list[str]] | None = None
        self.waiting_state: Any = None  # of a resumed run, for callbacks that have not started yet
        self.is_in_window = False
        self.is_checked = False
        self.eval_metric = ""
        self.epoch_metrics: EpochMetrics | None = None  # of a run that is recorded
        self.was_ended_by_callback = (
            False  # whether a callback, which says so again, had ended the resumed run
        )
        self.scheduler_position: Any = None  # before the user's methods of this update
        self._has_begun = False
        self._is_looking = False
        self._num_passes = 0  # over the training data, since the last epoch was counted
        self._batches: Iterator[Any] | None = None
        self._step: loop.Step | None = None
        self._after_update: list[Callable[[], None]] = []
        self._modes: list[tuple[nn.Module, bool]] = []

    # Loaders

    def prepare_loaders(self) -> None:
        """Wrap the interface's loaders: from here on the order of samples is a function of seed and
        epoch."""
        interface = self.interface
        if interface._train_dataloader is not None:
            interface._train_dataloader = prepared(
                self, interface._train_dataloader, TrainingLoader
            )
            self.run.train_stream = self._stream_of(interface._train_dataloader, is_training=True)
        if interface._eval_dataloader is not None:
            interface._eval_dataloader = prepared(
                self, interface._eval_dataloader, EvaluationLoader
            )
            self.run.eval_stream = self._stream_of(interface._eval_dataloader, is_training=False)

    # A training epoch

    def begin_epoch(self, loader: Any) -> bool:
        """Get ready for the steps of an epoch; False when the run goes on inside one."""
        self.leave_steps()
        progress = self.progress
        self.load_callbacks()
        if progress.is_exhausted:  # another pass over the data in the same epoch of the interface
            progress.next_epoch()
        is_new = not progress.in_epoch
        if is_new:
            self._num_passes += 1
            self.run.train_stream = self._stream_of(loader, is_training=True)
        loop.begin_epoch(self.run)
        self._has_begun = True
        self.stage = "steps"
        return is_new

    def training_batches(self, loader: TrainingLoader) -> Iterator[Any]:
        """The batches of an epoch, or the rest of them, each of which is a step of the run."""
        if self._is_looking:
            return self._look_at(loader)
        if self._batches is not None and self._step is not None:
            self.leave_steps()
        if not self._has_begun:
            self.begin_epoch(loader)
        self._batches = self._give_batches()
        return self._batches

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Iterating the training loader in this block only reads its batches: no epoch begins."""
        self._is_looking = True
        try:
            yield
        finally:
            self._is_looking = False

    def _look_at(self, loader: TrainingLoader) -> Iterator[Any]:
        stream = self._open(loader.loader, None, shuffle=True)
        try:
            stream.begin(0)
            for batch in stream:
                yield self.prepare_batch(batch.value)
        finally:
            stream.close()

    def _give_batches(self) -> Iterator[Any]:
        limits = replace(self.run.limits, epochs=None)  # the interface decides about epochs
        autocasts = self.runtime.precision != "fp32"
        for step in loop.open_steps(self.run, limits=limits):
            self._step = step
            self.is_in_window = True
            self.gradients.open_step(self.run.window.size == 0)
            if autocasts:
                with self.runtime.autocast:
                    yield step.batch
            else:
                yield step.batch
            self.gradients.close_step()
        self._end_steps()

    @contextmanager
    def steps(self) -> Iterator[None]:
        """The loop over an epoch's batches; with an exception, nothing of the step under way
        counts."""
        try:
            yield
        except BaseException as error:
            self.drop_steps()
            if isinstance(error, torch.OutOfMemoryError):
                error.add_note(
                    "Use a smaller `per_device_batch_size`, with proportionally more "
                    "`gradient_accumulation_steps` for the same effect, or mixed_precision='bf16'."
                )
            raise
        self.leave_steps()

    def leave_steps(self) -> None:
        """End the epoch's loop: count a step that was left with `break`, and finish the epoch's
        steps."""
        if self._batches is not None and self._step is not None:
            self._step.is_last = True
            next(self._batches, None)
        self._has_begun = False

    def drop_steps(self) -> None:
        """Forget the step under way, which an exception ended."""
        batches = self._batches
        self._batches = None
        self._step = None
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]  # a generator
        self._has_begun = False
        self.is_in_window = False
        self._after_update.clear()

    def close(self) -> None:
        """End the run: drop its steps, streams and hooks."""
        self.drop_steps()
        self.close_streams()
        self.drop_gradients()

    def _end_steps(self) -> None:
        self._batches = None
        self._step = None
        self._has_begun = False
        self.is_in_window = False
        self._after_update.clear()
        loop.end_steps(self.run)
        # after the last update: a resumed run finds the end of the data again
        if self.run.is_interrupted:
            self.progress.is_exhausted = False
        self.leave_if_interrupted()
        self.stage = "eval"

    def end_train_epoch(self) -> None:
        """`_run_train_epoch` is over; one that took no batch of the run's loader counts as an epoch
        too."""
        self.leave_steps()
        if self.stage == "steps":
            self.progress.is_exhausted = True
            self.stage = "eval"

    def report(self, loss: Any, size: int) -> None:
        """The loss of the step under way, and the samples that it is the mean of."""
        if self._step is not None:
            self._step.result = StepResult(loss, size)

    @property
    def is_in_step(self) -> bool:
        """Whether a step of the run is under way."""
        return self._step is not None

    def mean_loss(self) -> float:
        """The mean loss of a sample in this epoch, over all processes."""
        return self._add_up(self.run.meter).get("loss", nan)

    def _add_up(self, meter: Meter) -> dict[str, float]:
        return meter.compute(self.runtime.sum_table, gather=self.runtime.gather_samples)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Handle signals in the epochs of this block, on all processes at the same update."""
        with self.run.handling_signals(), workers_explained():
            yield
            self.runtime.finish_exchange()

    def end_epoch(self) -> None:
        """Record the epoch, unless a limit cut it short; further passes over the data in it do not
        count.

        Each pass is an epoch of the loop, since the order of samples follows its number, while
        `num_epochs` counts epochs of the interface, of which one may have several passes: so the
        limit moves by the passes beyond the first.
        """
        self.stage = "steps"
        extra = max(self._num_passes - 1, 0)
        self._num_passes = 0
        if extra:
            self.run.leave_out_epochs(extra)
        if self.epoch_metrics is not None:
            self.log(self.epoch_metrics.take(self.interface.run_history))
        is_over = self.progress.is_exhausted
        loop.record_epoch(self.run, {})
        if is_over:
            self.interface.run_history._increment_epoch()

    def _load_users_state(self, saved: Mapping[str, Any] | None, source: str) -> list[str]:
        """Nothing: the state of the user's trainer is loaded with those of the callbacks, once the
        run has started."""
        return []

    def load_callbacks(self) -> None:
        """Let the callbacks of a resumed run, which have started by now, go on where they were."""
        state = self.waiting_state
        self.waiting_state = None
        if state is not None:
            saving.load_callbacks(self.interface, state)

    @property
    def _defers_signals(self) -> bool:
        """Whether an evaluation is under way that a resumed run would not repeat; signals wait for
        its end."""
        return bool(self.run.phases) and (
            self.stage != "eval" or self.eval_metric != "eval_loss_epoch"
        )

    def leave_if_interrupted(self) -> None:
        """After a signal: save the state, from which a run can continue, and end the program.

        The core saves at the end of its loop; a run of this interface is saved by its callbacks, in
        the stage it is in.
        """
        if not self.run.is_interrupted:
            return
        self.interface.print(f"{self.run.signals.name} after update {self.progress.update}")
        self.run.signals.is_saving = True
        self.interface.callback_handler.call_event("save_interrupted_run", self.interface)
        raise interruption(
            self.run.signals.exit_code, f"Interrupted after update {self.progress.update}."
        )

    def _check_trained(self) -> None:
        """Nothing: `WeightsWatch` looks at the weights, and knows which of the user's methods is to
        blame."""

    @property
    def has_work(self) -> bool:
        """Whether there are steps to take, or the end of an epoch, which a run that was killed may
        have left."""
        return self.stage != "steps" or self.progress.is_unrecorded or not self.run.is_done()

    @property
    def has_reached_max_steps(self) -> bool:
        return (
            self.run.limits.updates is not None and self.progress.update >= self.run.limits.updates
        )

    def on_update_end(self) -> None:
        self.is_in_window = False
        if self._after_update:
            waiting = self._after_update
            self._after_update = []
            for action in waiting:
                action()
        if self.run.signals.take_save():
            self.interface.callback_handler.call_event("save_requested_run", self.interface)

    def after_update(self, action: Callable[[], None]) -> None:
        """Run an action now or, inside a step, after the update, when the state of the run is
        complete."""
        if self.is_in_window:
            self._after_update.append(action)
        else:
            action()

    def _map_hooks(self, function: Callable[[Hook], Hook]) -> None:
        super()._map_hooks(function)
        self.interface.callback_handler.map_hooks(function)

    # An evaluation epoch

    def run_evaluation(self, loader: Any, metric: str) -> None:
        """Evaluate, also inside an epoch; the loss is recorded under the name of the metric."""
        self.load_callbacks()
        before = (self.eval_metric, self.run.eval_stream)
        self.eval_metric, self.run.eval_stream = metric, self._stream_of(loader, is_training=False)
        try:
            evaluate(self.run, self.run.eval_stream)
        finally:
            self.eval_metric, self.run.eval_stream = before
        if self.stage == "eval" and not self.is_in_window:
            self.leave_if_interrupted()

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        """Eval mode for the models that the interface has now, and everything as it was
        afterwards."""
        modules = {
            id(module): module
            for module in (*self.modules.values(), *self._current_models().values())
        }
        with evaluating(modules.values(), self.optimizers.values()):
            yield
        self.runtime.reshard()

    def set_eval_mode(self) -> None:
        """Eval mode until `set_train_mode`, for an evaluation epoch of the user's own."""
        if not self.run.phases and not self._modes:
            self._modes = [(part, part.training) for part in self.interface.model.modules()]
        self.interface.model.eval()

    def set_train_mode(self) -> None:
        """Restore the modes from before, or train mode if the model was left in eval mode."""
        for part, mode in self._modes:
            part.training = mode
        self._modes = []
        if self.interface.optimizer is not None:
            start_training_mode([self.interface.model], [self.interface.optimizer])

    @contextmanager
    def intermediate(self) -> Iterator[None]:
        """Evaluations in here are extra ones, inside a training epoch."""
        self.is_intermediate = True
        try:
            yield
        finally:
            self.is_intermediate = False

    def on_eval_start(self, data: Stream) -> None:
        self.interface.eval_epoch_start()
        call = self.interface.callback_handler.call_event
        call("on_eval_epoch_start", self.interface, is_intermediate=self.is_intermediate)

    def eval_step(self, batch: Any) -> StepResult:
        """An evaluation step on samples of this process; other processes may have none in it."""
        with self.gathering.round(self._is_uneven()):
            return self._take_eval_step(batch)

    def _eval_without_samples(self, batch: Any) -> None:
        """An evaluation step without a sample of this process: taken with another's if the others
        gather in it."""
        self._is_uneven()
        if self.gathering.is_needed() or self.runtime.forwards_together:
            with self._standing_in():
                self._take_eval_step(batch)

    def _is_uneven(self) -> bool:
        assert self.run.eval_stream is not None
        return self.gathering.is_uneven(
            self.run.eval_stream, self.run.window.size, self.run.window.total
        )

    def _take_eval_step(self, batch: Any) -> StepResult:
        interface = self.interface
        call = interface.callback_handler.call_event
        call("on_eval_step_start", interface)
        output = checked_output(
            interface.calculate_eval_batch_loss(batch), "calculate_eval_batch_loss"
        )
        call("on_eval_step_end", interface, batch=batch, batch_output=output)
        return StepResult(output["loss"], output.get("batch_size", self.run.window.size))

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        """A step on a sample of another process: metrics do not count it, and nothing of it is
        gathered."""
        owners = (self.interface, *self.interface.callback_handler.callbacks)
        held = {
            f"{at}: {name}": value
            for at, owner in enumerate(owners)
            for name, value in vars(owner).items()
            if isinstance(value, nn.Module)
        }
        with measuring_nothing(held), self.gathering.standing_in():
            yield

    def evaluation_batches(self, loader: EvaluationLoader) -> Iterator[Any]:
        """The batches of an evaluation epoch of the user's own."""
        stream = self._stream_of(loader, is_training=False)
        gathering = self.gathering
        with self._eval_mode(), torch.no_grad(), preserved_rng():
            stream.begin(0)
            for value, size, total in stream:
                is_uneven = gathering.is_uneven(stream, size, total)
                batch = self.prepare_batch(value)
                if size or total is None:
                    with gathering.round(is_uneven), self.runtime.autocast:
                        yield batch
                elif gathering.is_needed():
                    with self._standing_in(), self.runtime.autocast:
                        yield batch
            gathering.end()

    def on_eval_end(self, data: Stream) -> None:
        self.gathering.end()
        measured = self._add_up(self.run.phases[-1])
        if self.stage == "eval" and self.eval_metric == "eval_loss_epoch":
            self.stage = "end"
        self.interface.run_history.update_metric(self.eval_metric, measured["loss"])
        self.interface.eval_epoch_end()
        call = self.interface.callback_handler.call_event
        call("on_eval_epoch_end", self.interface, is_intermediate=self.is_intermediate)
