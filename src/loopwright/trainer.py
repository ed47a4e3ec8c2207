"""The trainer: components and override points. How batches are iterated is in `loop`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from . import loop
from .building import Schedule, build_optimizer, build_schedule, named
from .callbacks.defaults import with_defaults
from .callbacks.nonfinite import NonFiniteGuard
from .components import (
    check_owners,
    check_trainable,
    evaluating,
    found_on,
    is_trained,
    start_training_mode,
    swap_parameters,
)
from .data.stream import Stream, open_stream
from .errors import ConfigurationError
from .history import History
from .hooks import Callback, Dispatch, TrainerHooks, as_callback, check_hooks
from .meter import Meter, average_rows
from .optimization import Lane, Optimization, Window
from .progress import Limits, Progress
from .runtime import Runtime, Signals, resolve_runtime
from .step import StepResult
from .supervised import call_model, loss_of, split_supervised, stack_outputs

if TYPE_CHECKING:
    from .resuming import Mark
    from .run import RunDirectory


class Trainer(TrainerHooks):
    """Trains one or several models. Constructor arguments are the default `configure_*`; override what differs."""

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        optimizer: Any = None,
        loss_fn: Any = None,
        *,
        scheduler: Any = None,
        callbacks: Iterable[Any] = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: str = "fp32",
        runtime: Runtime | str | torch.device | None = None,
        seed: int | None = 0,
        run_dir: str | Path | None = None,
        progress: str = "auto",
    ) -> None:
        check_hooks(self, TrainerHooks, allow_other=True)
        if not isinstance(accumulate, int) or accumulate < 1:
            raise ConfigurationError(f"accumulate={accumulate!r}: use the number of batches per update, 1 or more.")
        self._given = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        if isinstance(model, nn.Module):
            self.model: nn.Module = model
        self.loss_fn = loss_fn
        self.callbacks = [as_callback(callback) for callback in callbacks]
        self.accumulate = accumulate
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.runtime = resolve_runtime(runtime, precision)
        self.seed = seed
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.progress_style = progress
        self.models: dict[str, nn.Module] = {}
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.schedules: dict[str, Schedule] = {}
        self.progress, self.history, self.meter = Progress(), History(), Meter()
        self.window = Window()
        self.optimization = Optimization({}, self.window)
        self.eval_stream: Stream | None = None
        self.stop_reason: str | None = None
        self.signals = Signals()
        self.skips_nonfinite = False
        self.num_calls = 0
        self.num_pieces = 1  # that a step is taken in, since memory ran out
        self.run: RunDirectory | None = None
        self.until = Limits()
        self.train_data: Any = None
        self.train_stream: Stream | None = None
        self.mark: Mark | None = None
        self._phases: list[Meter] = []
        self._replaced: dict[int, nn.Parameter] = {}
        self.has_agreed_stop = False
        self._clock = 0.0
        self.signals.is_shared = self.runtime.world > 1
        self._is_set_up = False
        self._bind_hooks(self.callbacks)

    # Components

    def configure_models(self) -> None:
        """Assign the models to self. Default: the constructor's."""
        for name, model in named(self._given["model"], "model").items():
            self.models[name] = model
            if not hasattr(self, name):
                setattr(self, name, model)

    def configure_optimizers(self) -> None:
        """Assign optimizers, and schedulers if any, to self. Default: the constructor's, built if it gave factories."""
        for name, given in named(self._given["optimizer"], "optimizer").items():
            owner = self.models.get(name)
            params = owner.parameters if owner is not None else self.parameters
            self.optimizers[name] = build_optimizer(given, params, name)
        only = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else None
        for name, given in named(self._given["scheduler"], "scheduler").items():
            self.schedules[name] = build_schedule(given, self.optimizers.get(name, only))

    def configure_data(self) -> tuple[Any, Any]:
        """Training and evaluation data, where `train` is called without. Default: none."""
        raise ConfigurationError("Trainer has no data: pass it to `train`, or override `configure_data`.")

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of all models, each once, that can be trained."""
        seen: set[int] = set()
        for module in self.modules.values():
            for param in module.parameters():
                if param.requires_grad and id(param) not in seen:
                    seen.add(id(param))
                    yield param

    # One step, in its parts

    def prepare_batch(self, batch: Any) -> Any:
        """The batch as the steps want it. Default: its tensors on the device."""
        return self.runtime.move(batch)

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        """(inputs, targets) of a batch; targets may be None."""
        return split_supervised(batch, self.loss_fn is not None)

    def forward(self, inputs: Any) -> Any:
        """The model's outputs. A dict of inputs goes in as keywords, a tuple as positional arguments."""
        return call_model(self.model, inputs)

    def compute_loss(self, outputs: Any, targets: Any) -> Any:
        """A tensor, a dict of named losses (their sum is optimised), or (sum, count) for ragged token losses."""
        return loss_of(outputs, targets, self.loss_fn)

    def train_step(self, batch: Any) -> Any:
        """One batch: forward, loss, `update`. Several optimizers: call `update` once for each, with its loss."""
        inputs, targets = self.split_batch(batch)
        outputs = self.forward(inputs)
        result = StepResult.of_loss(self.compute_loss(outputs, targets), self.window.size, outputs)
        self.update(result.loss, count=result.count)  # type: ignore[arg-type]
        return result

    def eval_step(self, batch: Any) -> Any:
        """One batch in eval mode, without gradients; what it returns is averaged over all samples."""
        inputs, targets = self.split_batch(batch)
        outputs = self.forward(inputs)
        return StepResult.of_loss(self.compute_loss(outputs, targets), self.window.size, outputs)

    def update(
        self,
        loss: Tensor,
        optimizer: Optimizer | str | None = None,
        *,
        count: Any = None,
        retain_graph: bool | None = None,
    ) -> None:
        """Backward now; at the end of the accumulation window clip, step, schedule and zero that optimizer.

        Gradients go to that optimizer's parameters only. `count` says that `loss` is a sum over so many items.
        """
        self.optimization.update(loss, optimizer, count=count, retain_graph=retain_graph)

    # Running

    def train(
        self,
        data: Any = None,
        num_epochs: int | None = None,
        eval_data: Any = None,
        *,
        num_updates: int | None = None,
        num_samples: int | None = None,
        max_time: float | None = None,
        batch_size: int | None = None,
        resume: bool | str | Path = "auto",
    ) -> History:
        """Train until the first limit is reached (one epoch, if none is given) and return the history."""
        from .training import run_training

        limits = Limits(num_epochs, num_updates, num_samples, max_time)
        return run_training(self, data, eval_data, limits, batch_size=batch_size, resume=resume)

    def evaluate(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """The averages of what `eval_step` returns, over every sample once."""
        self.setup()
        stream = data if isinstance(data, Stream) else self.open(data, batch_size, shuffle=False)
        return loop.evaluate(self, stream)

    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """The model's outputs for all samples, in order: concatenated if they are tensors, else a list of batches."""
        self.setup()
        return stack_outputs(loop.predict(self, self.open(data, batch_size, shuffle=False)))

    def stop(self, reason: str = "stop() was called") -> None:
        """Ask for the end of training after the current update."""
        self.stop_reason = self.stop_reason or reason

    def log(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the evaluation or epoch under way: numbers, or objects with `compute` and `reset`."""
        (self._phases[-1] if self._phases else self.meter).log(values)

    def log_step(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the training step that has just ended; tensors are read at the next log point."""
        self.meter.add_to_last(values)

    # Files

    def save(self, path: str | Path) -> None:
        """Write the complete state of this trainer to a checkpoint directory."""
        from .checkpoint.capture import save_trainer

        self.setup()
        save_trainer(self, path)

    def load(self, path: str | Path) -> None:
        """Take the complete state from a checkpoint; whatever does not fit is listed and nothing is changed."""
        from .checkpoint.capture import load_trainer

        self.setup()
        load_trainer(self, path)

    def export(self, path: str | Path) -> None:
        """Write the weights alone, as safetensors (or `.pt`)."""
        from .checkpoint.capture import export_weights

        self.setup()
        export_weights(self, path)

    # What the loop needs

    def setup(self) -> None:
        """Build what `configure_*` describe, once: models first, then optimizers, which need their parameters."""
        if not self._is_set_up:
            self.configure_models()
            self.modules = found_on(self, nn.Module, self.models)
            for module in self.modules.values():
                self.runtime.place(module)
                self._replaced |= self.runtime.wrap(module) if is_trained(module) else {}
            self.models = {name: m for name, m in self.modules.items() if m.state_dict()}
            self._is_set_up = True
        if not self.optimizers and any(True for _ in self.parameters()):  # a frozen model can still be evaluated
            self.configure_optimizers()
            self.optimizers = found_on(self, Optimizer, self.optimizers)
            for optimizer in self.optimizers.values():
                swap_parameters(optimizer, self._replaced)
            self._find_schedules()

    def _find_schedules(self) -> None:
        taken = {id(schedule.scheduler) for schedule in self.schedules.values()}
        only = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else None
        for name, scheduler in found_on(self, (LRScheduler, Schedule), {}).items():
            schedule = build_schedule(scheduler, only)
            if id(schedule.scheduler) not in taken:
                self.schedules[name] = schedule

    def setup_training(self) -> None:
        """Everything that is worked out once per `train` call: callbacks, lanes, modes."""
        self.setup()
        check_trainable(self.modules)
        if not self.optimizers:
            raise ConfigurationError("Trainer has no optimizer: pass `optimizer=` or override `configure_optimizers`.")
        check_owners(self.modules, self.optimizers)
        callbacks = with_defaults(self)
        self._bind_hooks(callbacks)
        guard = next((c for c in callbacks if isinstance(c, NonFiniteGuard) and c.action != "off"), None)
        if not self.optimization.lanes:
            lanes = {name: self._build_lane(name, o, guard) for name, o in self.optimizers.items()}
            off = None if self.runtime.precision == "fp32" else self.runtime.no_autocast
            self.optimization = Optimization(lanes, self.window, off)
        self.skips_nonfinite = guard is not None and not guard.is_final
        for lane in self.optimization.lanes.values():
            lane.listeners, lane.guard = self.hooks["on_optimizer_start"], guard
        self.optimization.refresh(self.modules.values())
        start_training_mode(self.modules.values(), self.optimizers.values())

    def _build_lane(self, name: str, optimizer: Optimizer, guard: Any) -> Lane:
        if isinstance(optimizer, torch.optim.LBFGS) and type(self).train_step is Trainer.train_step:
            raise ConfigurationError(
                f"Optimizer {name!r} is LBFGS, which evaluates the loss several times a step: override `train_step` "
                "and call `optimizer.step(closure)` there, or use another optimizer."
            )
        lane = Lane(
            name,
            optimizer,
            scaler=self.runtime.build_scaler(),
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
            guard=guard,
            reads_are_free=self.runtime.reads_are_free,
            peers=self.runtime if self.runtime.world > 1 else None,
        )
        for schedule in self.schedules.values():
            if schedule.interval == "update" and schedule.scheduler.optimizer is optimizer:
                lane.schedulers.append(schedule.scheduler)
        return lane

    def run_epoch(self, stream: Stream, until: Limits) -> None:
        """One epoch as the loop runs it; a door puts around it what its document has there."""
        loop.train_epoch(self, stream, until)

    def epoch_length(self) -> int | None:
        """Batches in an epoch, where that is known."""
        return None if self.train_stream is None else self.train_stream.num_batches

    def schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs."""
        for schedule in self.schedules.values():
            if schedule.interval == "epoch":
                schedule.step(row)

    def open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        seed = torch.initial_seed() if self.seed is None else self.seed
        stream = open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=self.runtime.shard)
        for callback in self.active_callbacks:
            stream = callback.adapt_stream(stream, is_training=shuffle)
        return stream

    def flush(self) -> None:
        """A log point: read the pending step metrics from the device and pass them on."""
        first = self.progress.step - self.meter.num_pending + 1
        rows = self.meter.flush()
        if self.runtime.world > 1:
            rows = average_rows(rows, self.meter.weights, self.runtime.sum_table)
        self.optimization.check()
        if rows:
            self.history.add_steps(first, rows)
            self.emit("on_log", rows)

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked for the end of training."""
        return self.signals.stop is not None

    @property
    def is_stopping(self) -> bool:
        """Whether someone asked for the end of training; with several processes, once all of them know."""
        return self.stop_reason is not None and (self.runtime.world == 1 or self.has_agreed_stop)

    def is_done(self, until: Limits) -> bool:
        return self.signals.stop is not None or self.is_stopping or until.reached(self.progress) is not None

    def agree(self) -> None:
        """Hear what any process wished in the update before, and go by the first one's clock, so that all act alike."""
        wants_stop = self.stop_reason is not None
        clock = int(self.progress.seconds * 1e6) if self.runtime.is_main else 0
        wishes = (self.signals.requested or 0, int(wants_stop), int(self.signals.take_save()), clock)
        stop, has_stop, save, clock = self.runtime.exchange(wishes)
        self._clock = max(self._clock, clock / 1e6)
        self.progress.seconds = self._clock
        self.signals.wants_save = bool(save)
        if stop:
            self.signals.stop = stop
        if has_stop:
            self.agree_on_stop()

    def agree_on_stop(self) -> None:
        """Take over a reason to stop that only some processes have."""
        if self.runtime.world > 1:
            reasons = self.runtime.gather_objects(self.stop_reason)
            self.stop_reason = next((reason for reason in reasons if reason is not None), None)
            self.has_agreed_stop = self.stop_reason is not None

    def say(self, line: str) -> None:
        """A line for the person at the terminal, unless silence was asked for."""
        if self.progress_style != "silent" and self.runtime.is_main:
            print(line, flush=True)

    @contextmanager
    def phase(self, meter: Meter) -> Iterator[None]:
        """Make a meter the one that `log` writes to."""
        size = self.window.size  # an evaluation may be nested in a step
        self._phases.append(meter)
        try:
            yield
        finally:
            self._phases.pop()
            self.window.size = size

    def eval_mode(self) -> AbstractContextManager[None]:
        return evaluating(self.modules.values(), self.optimizers.values())

    def _bind_hooks(self, callbacks: Iterable[Callback]) -> None:
        self.active_callbacks = list(callbacks)
        self.hooks = Dispatch(Callback, self, self.active_callbacks, base=TrainerHooks).hooks

    def emit(self, event: str, *args: Any) -> None:
        for hook in self.hooks[event]:
            hook(*args)
