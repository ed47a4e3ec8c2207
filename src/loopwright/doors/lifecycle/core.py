"""The core trainer of one run: its loop iterates, and asks the door's stages for everything that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ... import loop
from ...agreeing import Accord
from ...assembly import build_lane
from ...building import Schedule
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.stream import Stream, open_stream
from ...errors import Interrupted
from ...meter import Meter
from ...optimization import Guard, Lane, Optimization
from ...runtime import Runtime
from ...step import StepResult
from ...trainer import Trainer as CoreTrainer

if TYPE_CHECKING:
    from .trainer import Trainer

Stage = Literal["steps", "eval", "end", "over"]


class Core(CoreTrainer):
    """Translates: what the core calls a train step is, here, the stages of document 002 in their order.

    `stage` is what comes next in the epoch, once the event under way is over; a training state holds it, so that a
    resumed run takes up an epoch exactly where it was.
    """

    plateau_metric = None

    def __init__(
        self, door: Trainer, runtime: Runtime, *, accumulate: int = 1, clip_value: float | None = None
    ) -> None:
        super().__init__(
            callbacks=[NonFiniteGuard("off")],  # stopping on NaN is a callback of the door
            accumulate=accumulate,
            clip_value=clip_value,
            runtime=runtime,
            seed=None,
            progress="silent",
        )
        self.door = door
        self.order_seed = torch.initial_seed()
        self.stage: Stage = "steps"
        self.resumed_event: tuple[str, list[str]] | None = None
        self.is_intermediate = self.is_in_window = False
        self.eval_metric = ""
        self._after_update: list[Callable[[], None]] = []
        self._streams: dict[int, tuple[Any, Stream]] = {}

    # Components

    def configure_models(self) -> None:
        """The model, and whatever else on the door is trained, such as a loss function with parameters."""
        optimizer = self.door.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        trained = {id(param) for group in groups for param in group["params"]}
        self.models = {"model": self.door.get_model()}
        for name, value in vars(self.door).items():
            if isinstance(value, nn.Module) and name != "model" and any(id(p) in trained for p in value.parameters()):
                self.models[name] = value

    def configure_optimizers(self) -> None:
        if self.door.optimizer is not None:
            self.optimizers["optimizer"] = self.door.optimizer

    def use_scheduler(self, scheduler: Any) -> None:
        """Make a scheduler part of the state of the run; the door's `scheduler_step` is what steps it."""
        self.schedules = {} if scheduler is None else {"scheduler": Schedule(scheduler, every="update")}

    def use_guard(self, guard: Guard | None) -> None:
        """Let losses be looked at on the device, where reading each of them would hold it up."""
        if guard is not None and (not self.runtime.reads_are_free or self.runtime.world > 1):
            self._rebuild_lane(guard)

    @property
    def lane(self) -> Lane:
        return self.optimization.lanes["optimizer"]

    def _rebuild_lane(self, guard: Guard | None) -> None:
        lane = build_lane(self, "optimizer", self.optimizers["optimizer"], guard)
        self.optimization = Optimization({"optimizer": lane}, self.window)
        self.optimization.refresh(self.modules.values())

    def watch_steps(self) -> None:
        """Nothing: an update is stages here, any of which may be the user's own."""

    # Data

    def open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        """Batch sizes are those of each process, as the document has them."""
        shard = self.runtime.shard
        shard = None if shard is None else replace(shard, is_per_process=True)
        seed = self.runtime.broadcast_object(self.order_seed)
        return open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard)

    def stream(self, loader: Any, *, is_training: bool) -> Stream:
        """The stream over a loader as the callbacks want it, opened when it is first asked for."""
        if id(loader) not in self._streams:
            self._streams[id(loader)] = (loader, self.open(loader, None, shuffle=is_training))
        stream = self._streams[id(loader)][1]
        for callback in self.door.callback_handler.callbacks:
            stream = callback.adapt_stream(stream, is_training=is_training, is_intermediate=self.is_intermediate)
        return stream

    def close_stream(self, loader: Any) -> None:
        if id(loader) in self._streams:
            self._streams.pop(id(loader))[1].close()

    def close_streams(self) -> None:
        for _, stream in self._streams.values():
            stream.close()
        self._streams = {}

    # A training epoch

    def begin_epoch(self, loader: Any) -> bool:
        """Get ready for the steps of an epoch; False when the run goes on inside one."""
        progress = self.progress
        if progress.is_exhausted:
            progress.next_epoch()
        if self.door.optimizer is not None and self.door.optimizer is not self.optimizers["optimizer"]:
            self.optimizers["optimizer"] = self.door.optimizer
            self._rebuild_lane(self.lane.guard)
        self.optimization.refresh(self.modules.values())
        if progress.in_epoch:
            return False
        self.train_stream = self.stream(loader, is_training=True)
        self.train_stream.begin(progress.epoch)
        self.meter = self.meter.fresh()
        return True

    def run_steps(self) -> float:
        """All steps of the epoch, or what is left of them and of the updates; the mean loss of a sample."""
        assert self.train_stream is not None
        try:
            loop.take_steps(self, self.train_stream, replace(self.until, epochs=None))  # this epoch was asked for
        finally:
            self.is_in_window = False
            self._after_update.clear()
        self.flush()
        self.leave_if_interrupted()
        self.stage = "eval"
        return self._add_up(self.meter).get("loss", nan)

    def _add_up(self, meter: Meter) -> dict[str, float]:
        return meter.compute(self.runtime.sum_table, gather=self.runtime.gather_samples)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Epochs in which all processes hear of the same signals at the same update."""
        self.accord = Accord(self) if self.runtime.world > 1 else None
        with self.signals:
            yield
            self.runtime.finish_exchange()

    def end_epoch(self) -> None:
        """Count the epoch, unless a limit cut it short."""
        self.stage = "steps"
        self.progress.recorded_step = self.progress.step
        if self.progress.is_exhausted:
            self.progress.next_epoch()
            self.door.run_history._increment_epoch()

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked for the end; evaluations that a resumed run would not do again are finished first."""
        is_extra = bool(self._phases) and (self.stage != "eval" or self.eval_metric != "eval_loss_epoch")
        return super().is_interrupted and not is_extra

    def leave_if_interrupted(self) -> None:
        """After a signal: let the state be saved where a run can go on from it, and end the program."""
        if not self.is_interrupted:
            return
        self.door.print(f"{self.signals.name} after update {self.progress.update}")
        self.door.callback_handler.call_event("save_interrupted_run", self.door)
        raise Interrupted(self.signals.exit_code)

    @property
    def has_work(self) -> bool:
        """Whether there are steps to take, or the end of an epoch, which a run that was killed may have left."""
        return self.stage != "steps" or self.progress.is_unrecorded or not self.is_done(self.until)

    def train_step(self, batch: Any) -> StepResult:
        door = self.door
        self.is_in_window = self.window.is_spent = True  # events have been heard: no second try in smaller pieces
        call = door.callback_handler.call_event
        call("on_train_step_start", door)
        output = door.calculate_train_batch_loss(batch)
        call("on_train_step_end", door, batch=batch, batch_output=output)
        loss = output["loss"]
        door.backward_step(loss)
        if self.window.is_last:
            self.lane.complete()
            door._clip_gradients()
            door.optimizer_step()
            door.scheduler_step()
            door.optimizer_zero_grad()
        return StepResult(loss, output.get("batch_size", self.window.size))

    def on_update_end(self) -> None:
        self.is_in_window = False
        if self._after_update:
            waiting, self._after_update = self._after_update, []
            for action in waiting:
                action()
        if self.signals.take_save():
            self.door.callback_handler.call_event("save_requested_run", self.door)

    def after_update(self, action: Callable[[], None]) -> None:
        """Do it now, or, inside a step, when the update is through and the state of the run is whole again."""
        if self.is_in_window:
            self._after_update.append(action)
        else:
            action()

    # An evaluation epoch

    def run_evaluation(self, loader: Any, metric: str) -> None:
        """An evaluation inside whatever is under way; its loss is recorded under the name of the metric."""
        before = (self.eval_metric, self.eval_stream)
        self.eval_metric, self.eval_stream = metric, self.stream(loader, is_training=False)
        try:
            loop.evaluate(self, self.eval_stream)
        finally:
            self.eval_metric, self.eval_stream = before
        if self.stage == "eval" and not self.is_in_window:
            self.leave_if_interrupted()

    @contextmanager
    def intermediate(self) -> Iterator[None]:
        """Evaluations in here are extra ones, inside a training epoch."""
        self.is_intermediate = True
        try:
            yield
        finally:
            self.is_intermediate = False

    def on_eval_start(self, data: Stream) -> None:
        self.door.eval_epoch_start()
        self.door.callback_handler.call_event("on_eval_epoch_start", self.door)

    def eval_step(self, batch: Any) -> StepResult:
        door = self.door
        call = door.callback_handler.call_event
        call("on_eval_step_start", door)
        output = door.calculate_eval_batch_loss(batch)
        call("on_eval_step_end", door, batch=batch, batch_output=output)
        return StepResult(output["loss"], output.get("batch_size", self.window.size))

    def on_eval_end(self, data: Stream) -> None:
        measured = self._add_up(self._phases[-1])
        if self.stage == "eval" and self.eval_metric == "eval_loss_epoch":
            self.stage = "end"
        self.door.run_history.update_metric(self.eval_metric, measured["loss"])
        self.door.eval_epoch_end()
        self.door.callback_handler.call_event("on_eval_epoch_end", self.door)
