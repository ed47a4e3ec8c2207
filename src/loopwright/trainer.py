"""The trainer: components and override points. How batches are iterated is in `loop`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .callback import Callback, Dispatch, TrainerHooks, as_callbacks, check_hooks
from .data.open import Stream, as_dataset, open_stream, refuse_shuffled
from .errors import ConfigurationError, public
from .metrics.direction import Directions
from .metrics.history import History
from .metrics.meter import Meter, average_rows
from .optim.build import Schedule, build_optimizer, build_schedule, check_given, named
from .runtime import Runtime, Signals, resolve_runtime
from .training import assembly, components, steps
from .training.door_points import DoorPoints
from .training.progress import Limits, Progress
from .training.result import StepResult
from .training.supervised import call_model, checked_pair, loss_of, split_supervised, stack_outputs
from .training.update import Optimization, Window

if TYPE_CHECKING:
    from .run import RunDirectory
    from .run.changes import Change
    from .training.consensus import StopConsensus
    from .training.resume import Mark


class Trainer(DoorPoints):
    """Trains one or several models. Constructor arguments are the default `configure_*`; override what differs."""

    @public
    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        optimizer: Any = None,
        loss_fn: Any = None,
        *,
        scheduler: Any = None,
        callbacks: Any = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: str = "fp32",
        device: str | torch.device | None = None,
        runtime: Runtime | str | torch.device | None = None,
        seed: int | None = 0,
        run_dir: str | Path | None = None,
        progress: str = "auto",
    ) -> None:
        check_hooks(self, TrainerHooks, allow_other=True)
        if type(self) is not Trainer:
            from ._other_frameworks import check_subclass

            check_subclass(self, Trainer)
        check_given(model, optimizer, loss_fn, run_dir=run_dir, seed=seed)
        components.check_accumulation(accumulate)
        components.check_clipping("clip_norm", clip_norm)
        components.check_clipping("clip_value", clip_value)
        self._given = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        if isinstance(model, nn.Module):
            self.model: nn.Module = model
        self.loss_fn = loss_fn
        self.callbacks = as_callbacks(callbacks)
        self.accumulate = accumulate
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.runtime = resolve_runtime(runtime, precision, device)
        self.seed = seed
        self.run_dir = None if run_dir is None else components.checked_directory(run_dir)
        self.progress_style = progress
        self.models: dict[str, nn.Module] = {}
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.schedules: dict[str, Schedule] = {}
        self.progress, self.history, self.meter = Progress(), History(), Meter()
        self.directions = Directions()
        self.window = Window()
        self.optimization = Optimization({}, self.window)
        self.eval_stream: Stream | None = None
        self.stop_reason: str | None = None
        self.signals = Signals()
        self.skips_nonfinite = False
        self.num_calls = 0
        self.eval_seconds = 0.0  # spent in evaluations, which the clock of training leaves out
        self.num_pieces = 1  # that a step is taken in, since memory ran out
        self.run: RunDirectory | None = None
        self.until = Limits()
        self.train_data: Any = None
        self.datasets: Mapping[str, Any] = {}  # by name, for callbacks that look at more than the evaluation data
        self.train_stream: Stream | None = None
        self.mark: Mark | None = None
        self.structure: dict[str, Any] = {}  # of the models, before they are wrapped
        self.fingerprint: dict[str, Any] | None = None  # what the program gave this run to be
        self.accepted: list[Change] = []  # in which the program differs from the run that it goes on with
        self.token = ""  # what processes that write a checkpoint together call the place
        self._phases: list[Meter] = []
        self._replaced: dict[int, nn.Parameter] = {}
        self.known_optimizers: dict[str, Optimizer] = {}  # as they were when they were last looked at
        self.trained: dict[str, Any] = {}  # what the `train` call under way trains
        self.is_evaluating = False
        self.accord: StopConsensus | None = None
        self.signals.is_shared = self.runtime.world > 1
        self._is_set_up = False
        self.bind_hooks(self.callbacks)

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
            models = self.modules if owner is None else {name: owner}
            self.optimizers[name] = build_optimizer(given, params, name, models=models)
            if not hasattr(self, name):
                setattr(self, name, self.optimizers[name])
        only = next(iter(self.optimizers.values())) if len(self.optimizers) == 1 else None
        for name, given in named(self._given["scheduler"], "scheduler").items():
            self.schedules[name] = build_schedule(given, self.optimizers.get(name, only))

    def configure_data(self) -> tuple[Any, Any]:
        """Training and evaluation data, where `train` is called without. Default: none."""
        raise ConfigurationError("Trainer has no data: pass it to `train`, or override `configure_data`.")

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of all models, each once, that can be trained."""
        return components.trainable_parameters(self.modules.values())

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
        pair = self.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
        outputs = self.forward(inputs)
        result = StepResult.of_loss(self.compute_loss(outputs, targets), self.window.size, outputs)
        self.update(result.loss, count=result.count)  # type: ignore[arg-type]
        return result

    def eval_step(self, batch: Any) -> Any:
        """One batch in eval mode, without gradients; what it returns is averaged over all samples."""
        pair = self.split_batch(batch)
        inputs, targets = pair if type(pair) is tuple and len(pair) == 2 else checked_pair(pair)
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
        if self.is_evaluating:
            self.check_update(loss, count)
        try:
            self.optimization.update(loss, optimizer, count=count, retain_graph=retain_graph)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            self.check_update(loss, count)
            raise

    # Running

    @public
    def train(
        self,
        data: Any = None,
        num_epochs: int | None = None,
        eval_data: Any = None,
        *,
        num_updates: int | None = None,
        num_samples: int | None = None,
        max_time: float | str | timedelta | None = None,
        batch_size: int | None = None,
        resume: bool | str | Path = "auto",
        changes: str = "refuse",
    ) -> History:
        """Train until the first limit is reached (one epoch, if none is given) and return the history.

        `data` is a data set, a DataLoader, inputs and targets as one argument `(x, y)`, or a list of batches.
        `max_time` is in seconds of training, without evaluations: a number, a text such as "1h30m", or a `timedelta`.
        A run in `run_dir` goes on where it was. If the program is not the one it was started with, that is an error;
        `changes="accept"` goes on with the new values.
        """
        from .training.train_call import run_training

        data, eval_data = as_dataset(data), as_dataset(eval_data)
        limits = Limits.given(num_epochs, num_updates, num_samples, max_time)
        return run_training(self, data, eval_data, limits, batch_size=batch_size, resume=resume, changes=changes)

    @public
    def evaluate(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """The averages of what `eval_step` returns, over every sample once."""
        self.setup()
        stream = data if isinstance(data, Stream) else self.open(data, batch_size, shuffle=False)
        return steps.evaluate(self, stream)

    @public
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """The model's outputs for all samples, in order: concatenated if they are tensors, else a list of batches."""
        refuse_shuffled(data)
        self.setup()
        return stack_outputs(steps.predict(self, self.open(data, batch_size, shuffle=False)))

    def stop(self, reason: str = "stop() was called") -> None:
        """Ask for the end of training after the current update."""
        self.stop_reason = self.stop_reason or reason

    @public
    def log(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the evaluation or epoch under way: numbers, or objects with `compute` and `reset`."""
        (self._phases[-1] if self._phases else self.meter).log(values)

    def log_step(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the training step that has just ended; tensors are read at the next log point."""
        self.meter.add_to_last(values)

    # Files

    @public
    def save(self, path: str | Path) -> None:
        """Write the complete state of this trainer to a checkpoint directory."""
        from .checkpoint.state import save_trainer

        self.setup()
        save_trainer(self, path)

    @public
    def load(self, path: str | Path) -> None:
        """Take the complete state from a checkpoint; whatever does not fit is listed and nothing is changed."""
        from .checkpoint.state import load_trainer

        self.setup()
        load_trainer(self, path)

    @public
    def load_weights(self, path: str | Path, *, model: str | None = None) -> None:
        """Take the weights of the best kept model of a run (or its newest state), of a checkpoint or of a file.

        Everything has to fit, and a line says what was loaded. `model` names the one to load where there are several.
        """
        from .initializers import FromCheckpoint

        self.setup()
        FromCheckpoint(path, use="any", model=model, source_model=model).initialize(self)

    @public
    def export(self, path: str | Path) -> None:
        """Write the weights alone, as safetensors (or `.pt`)."""
        from .checkpoint.state import export_weights

        self.setup()
        export_weights(self, path)

    # What the loop needs

    def setup(self) -> None:
        """Build what `configure_*` describe, once: models first, then optimizers, which need their parameters."""
        if not self._is_set_up:
            self._replaced = assembly.assemble_models(self)
            self._is_set_up = True
        assembly.adopt_replaced(self)
        if not self.optimizers and any(True for _ in self.parameters()):  # a frozen model can still be evaluated
            assembly.assemble_optimizers(self, self._replaced)

    def setup_training(self) -> None:
        """Everything that is worked out once per `train` call."""
        self.setup()
        components.check_defaults(self, Trainer)
        assembly.assemble_training(self)

    def adopt_replaced(self) -> None:
        """Go on with what a hook has put in the place of a model or optimizer, or say why that cannot be."""
        (assembly.adopt_replaced if self.is_evaluating or not self.trained else assembly.adopt_in_training)(self)

    @property
    def has_default_step(self) -> bool:
        return getattr(self.train_step, "__func__", None) is Trainer.train_step

    @property
    def builds_models(self) -> bool:
        return type(self).configure_models is not Trainer.configure_models

    def run_epoch(self, stream: Stream, until: Limits) -> None:
        """One epoch as the loop runs it; a door puts around it what its document has there."""
        steps.train_epoch(self, stream, until)

    def epoch_length(self) -> int | None:
        """Batches in an epoch, where that is known."""
        return None if self.train_stream is None else self.train_stream.num_batches

    def schedule_epoch(self, row: Mapping[str, float]) -> None:
        """Step the schedulers that count epochs."""
        for schedule in self.schedules.values():
            if schedule.interval == "epoch":
                schedule.step(row)

    def open(self, data: Any, batch_size: int | None, *, shuffle: bool) -> Stream:
        seed = self.runtime.broadcast_object(torch.initial_seed()) if self.seed is None else self.seed
        stream = open_stream(data, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=self.runtime.shard)
        for callback in self.active_callbacks:
            stream = callback.adapt_stream(stream, is_training=shuffle)
        return stream

    def flush(self) -> None:
        """A log point: read the pending step metrics from the device and pass them on."""
        first = self.progress.step - self.meter.num_pending + 1
        rows = self.meter.flush()
        self.directions.losses |= self.meter.losses
        if self.runtime.world > 1:
            rows = average_rows(rows, self.meter.weights, self.runtime.sum_table)
        self.optimization.check()
        self.adopt_replaced()
        if rows:
            self.history.add_steps(first, rows)
            self.emit("on_log", rows)

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked for the end of training."""
        return self.signals.stop is not None

    def is_done(self, until: Limits) -> bool:
        """Whether a signal, someone's wish or a limit ends training; with several processes, once all of them know."""
        is_stopping = self.stop_reason is not None and (self.accord is None or self.accord.has_stop)
        return self.signals.stop is not None or is_stopping or until.reached(self.progress) is not None

    def say(self, line: str) -> None:
        """A line for the person at the terminal, unless silence was asked for."""
        if self.progress_style != "silent" and self.runtime.is_main:
            print(line.encode(errors="backslashreplace").decode(), flush=True)  # paths need not be Unicode

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

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Eval mode for the models, and everything as it was afterwards."""
        assembly.adopt_replaced(self)
        before, self.is_evaluating = self.is_evaluating, True
        try:
            with components.evaluating(self.modules.values(), self.optimizers.values()):
                yield
                assembly.adopt_replaced(self)  # a model put in for the evaluation alone is out again
        finally:
            self.is_evaluating = before
        self.runtime.reshard()

    def bind_hooks(self, callbacks: Iterable[Callback]) -> None:
        self.active_callbacks = list(callbacks)
        self.hooks = Dispatch(Callback, self, self.active_callbacks, TrainerHooks, self.trainer_for).hooks

    def emit(self, event: str, *args: Any) -> None:
        for hook in self.hooks[event]:
            hook(*args)
