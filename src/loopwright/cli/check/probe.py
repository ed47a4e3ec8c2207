"""Tiny runs of a config, the callbacks that observe them, and the memory and time that steps
take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...callback import Callback
from ...callbacks.interval import Periodic, Watching
from ...checkpoint import read_checkpoint, write_checkpoint
from ...data.stream import Batch, Stream, StreamWrapper
from ...metrics.progress import counted
from ...tuning.memory import StepWatch
from ..output import size_text, time_text
from .data import finite, leaves, same
from .dry_run import tensors_of
from .schedule import Length

if TYPE_CHECKING:
    from ...interfaces.configured.engine import Engine
    from ...interfaces.configured.experiment import Experiment
    from ...metrics.result import StepResult
    from ...trainer import Trainer

UPDATES = 2  # in an epoch
SAMPLES = 4  # in a batch
WINDOW = 2  # batches in an update that accumulates
EVAL_BATCHES = 2
NUM_UPDATES = 3
ENOUGH_SECONDS = 2.0  # for measuring full batches; slower ones are estimated from small ones


class Probe(Callback):
    """Records losses, gradients, weights and changed inputs of a tiny run."""

    precedence = 1

    def __init__(self) -> None:
        self.names: set[str] = set()  # of the metrics that steps return
        self.changed_inputs: list[str] = []
        self.nonfinite: str | None = None
        self.without_gradient: list[str] = []
        self.has_learned = False
        self.largest_rate = 0.0
        self.is_finite = True
        self._before: dict[str, Tensor] = {}
        self._batch: Any = None
        self._reached: set[str] = set()

    def on_train_start(self, trainer: Trainer) -> None:
        self._before = {name: param.detach().clone() for name, param in _named(trainer)}

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self._batch = {
            key: [leaf.clone() for leaf in leaves(value)] for key, value in _parts(batch).items()
        }

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.names |= {"loss", *result.metrics}
        loss = float(result.loss.detach().sum()) if isinstance(result.loss, Tensor) else 0.0
        if not math.isfinite(loss):
            self.nonfinite = self.nonfinite or f"the loss of step {trainer.progress.step} is {loss}"
        now = _parts(batch)
        for key, before in self._batch.items():
            if key in now and not same(before, leaves(now[key])) and key not in self.changed_inputs:
                self.changed_inputs.append(key)

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._reached |= {name for name, param in _named(trainer) if param.grad is not None}
        rates = [
            float(group.get("lr", 1.0)) for group in trainer.optimizers[optimizer].param_groups
        ]
        self.largest_rate = max(self.largest_rate, *rates)

    def on_loop_end(self, trainer: Trainer) -> None:
        now = dict(_named(trainer))
        self.without_gradient = [name for name in now if name not in self._reached]
        self.has_learned = any(
            name not in self._before or not same([self._before[name]], [param.detach()])
            for name, param in now.items()
        )
        self.is_finite = all(finite(param.detach()) for param in now.values())


class SavesEach(Callback):
    """Saves the state of every callback separately, to find the one whose state cannot be saved."""

    precedence = 1

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_done = False

    def on_update_end(self, trainer: Trainer) -> None:
        if self._is_done:
            return
        self._is_done = True
        for number, callback in enumerate(trainer.run.callbacks):
            self._save(callback, self._folder / str(number))

    def _save(self, callback: Callback, path: Path) -> None:
        """Save and load the state of a callback; an error names the callback."""
        try:
            state = callback.state_dict()
            write_checkpoint(path, {"state": state}, {})
            read_checkpoint(path)
        except Exception as error:
            raise UnsavableStateError(callback, error) from error


class UnsavableStateError(Exception):
    """The state of a callback cannot be written to a checkpoint."""

    def __init__(self, owner: Callback, error: Exception) -> None:
        super().__init__(f"the state of {type(owner).__name__} cannot be saved: {error}")
        self.owner = owner


def repeated_loss(trainer: Trainer, batch: Any) -> tuple[float, float]:
    """The losses of one batch evaluated twice: the same object, in eval mode, with the same RNG
    state."""
    import torch

    from ...data.random import preserved_rng
    from ...metrics.result import StepResult

    batch = deepcopy(batch)
    losses = []
    for _ in range(2):
        with trainer._eval_mode(), torch.no_grad(), preserved_rng(), trainer.runtime.autocast:
            result = StepResult.of(trainer.eval_step(batch), trainer.run.window.size)
        losses.append(float(result.loss.sum()) if isinstance(result.loss, Tensor) else math.nan)
    return losses[0], losses[1]


def _named(trainer: Trainer) -> list[tuple[str, Any]]:
    """The parameters that require a gradient."""
    models = trainer.models.values()
    return [item for model in models for item in model.named_parameters() if item[1].requires_grad]


def _parts(batch: Any) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {str(key): value for key, value in batch.items()}
    items = batch if isinstance(batch, list | tuple) else [batch]
    return {f"part {number}": item for number, item in enumerate(items)}


class TinyStream(StreamWrapper):
    """The first few samples of the first few batches of every epoch."""

    def __init__(self, stream: Stream, num_batches: int, num_samples: int) -> None:
        self._limit = num_batches
        self._few = num_samples
        self._taken = 0
        super().__init__(stream)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._taken = 0

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        batches: list[Batch] = []
        while len(batches) < min(count, self._limit) and self._taken < self._limit:
            left = (
                self._few
                if max_samples is None
                else min(max_samples - sum(b.size for b in batches), self._few)
            )
            found = self._stream.take(1, left) if left > 0 else []
            if not found:
                break
            batches += found
            self._taken += 1
        return batches

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "stream": self._stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["stream"])
        self._taken = state["taken"]

    def _update_sizes(self) -> None:
        """Set the length of an epoch, where the length of the full one is known."""
        samples = self._stream.num_samples
        batches = self._stream.num_batches
        if not samples or not batches:
            self.num_batches = batches
            self.num_samples = samples
            return
        self.num_batches = min(self._limit, -(-samples // self._few))
        self.num_samples = min(self._limit * self._few, samples)


class Tiny(Callback):
    """Replaces every stream of a trainer by a TinyStream."""

    precedence = -2

    def __init__(self, num_batches: int, num_samples: int) -> None:
        self._num_batches = num_batches
        self._num_samples = num_samples

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        return TinyStream(
            stream, self._num_batches if is_training else EVAL_BATCHES, self._num_samples
        )


class Factory:
    """Builds engines for tiny runs, each with fresh objects.

    Data sets are shared where building them takes long. `num_workers` is what the config says, one
    at most.
    """

    def __init__(
        self, experiment: Experiment, datasets: Mapping[str, Any], *, shares_data: bool
    ) -> None:
        self.experiment = experiment
        self._datasets = datasets
        self._shares_data = shares_data

    def build(self) -> Engine:
        """Build the engine as `train` would."""
        datasets = self._datasets
        if not self._shares_data:
            datasets = {key: self.experiment.build_dataset(str(key)) for key in datasets}
        engine = self.experiment.build_trainer(datasets).engine
        engine.run.progress_style = "silent"
        engine.config.num_workers = min(engine.config.num_workers, 1)
        return engine

    def build_tiny(
        self,
        dropped: Collection[int] = (),
        added: Collection[Callback] = (),
        run_dir: Path | None = None,
    ) -> Engine:
        """Build an engine for a tiny run, without the callbacks at the positions in `dropped`."""
        engine = self.build()
        engine.run_dir = run_dir
        engine.accumulate = min(engine.accumulate, WINDOW)
        own = [
            callback
            for number, callback in enumerate(engine.run.callbacks)
            if number not in dropped
        ]
        for callback in own:
            if isinstance(callback, Periodic | Watching):
                callback.interval.n = 1
        tiny = Tiny(UPDATES * engine.accumulate, min(SAMPLES, engine.config.batch_size))
        engine.callbacks = [tiny, *own, *added]
        engine.run.bind(engine.callbacks)
        return engine


@dataclass(frozen=True, slots=True)
class Measures:
    """What a run needs: parameters, memory and time; None where a number is not known."""

    parameters: int
    trained: int
    batch_size: int
    accumulate: int
    step_seconds: float | None
    is_measured: bool  # on full batches, rather than estimated from small ones
    weight_bytes: int  # with gradients and the optimizer's state
    step_bytes: int | None  # kept for the backward pass, of a full batch
    updates: float | None
    epochs: float | None

    @property
    def seconds(self) -> float | None:
        """The duration of all training steps."""
        if self.step_seconds is None or self.updates is None:
            return None
        return self.step_seconds * self.accumulate * self.updates

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds}

    def texts(self) -> dict[str, str]:
        """The measures in words, by title."""
        frozen = self.parameters - self.trained
        kept = "" if self.step_bytes is None else f", and {size_text(self.step_bytes)} for a batch"
        return {
            "parameters": f"{self.parameters:,}"
            + (f", of which {frozen:,} are frozen" if frozen else ""),
            "memory": f"{size_text(self.weight_bytes)} for weights, gradients and the "
            f"optimizer{kept}",
            "step": self._step_text(),
            "run": self._run_text(),
        }

    def _step_text(self) -> str:
        if self.step_seconds is None:
            return "not measured"
        how = "measured" if self.is_measured else "estimated from smaller batches"
        return f"{1000 * self.step_seconds:.3g} ms for a batch of {self.batch_size} ({how})"

    def _run_text(self) -> str:
        if self.updates is None:
            return "of a length that is not known"
        steps = "" if self.accumulate == 1 else f" of {self.accumulate} batches"
        epochs = "" if self.epochs is None else f", {counted(self.epochs, 'epoch')}"
        duration = (
            "" if self.seconds is None else f": about {time_text(self.seconds)} without evaluations"
        )
        return f"{counted(round(self.updates), 'update')}{steps}{epochs}{duration}"


def measure(factory: Factory, length: Length) -> Measures:
    """Measure time and memory of a few steps, on full batches unless that takes long."""
    engine, watch = _train(factory, SAMPLES)
    size = engine.config.batch_size
    full = min(size, _num_samples(engine) or size)
    is_measured = (
        full <= SAMPLES or NUM_UPDATES * (watch.seconds or 0.0) * full / SAMPLES < ENOUGH_SECONDS
    )
    if is_measured and full > SAMPLES:
        engine, watch = _train(factory, full)
    scale = 1.0 if is_measured else full / SAMPLES
    params = {id(p): p for module in engine.modules.values() for p in module.parameters()}.values()
    trained = [param for param in params if param.requires_grad]
    states = (tensor for o in engine.optimizers.values() for tensor in tensors_of(dict(o.state)))
    weights = (
        _bytes(params)
        + _bytes(trained)
        + _bytes(b for m in engine.modules.values() for b in m.buffers())
    )
    is_host = engine.runtime.device.type == "cpu"
    kept = watch.memory if is_host or watch.memory is None else max(watch.memory - weights, 0)
    return Measures(
        parameters=sum(param.numel() for param in params),
        trained=sum(param.numel() for param in trained),
        batch_size=size,
        accumulate=engine.config.accumulate,
        step_seconds=None if watch.seconds is None else watch.seconds * scale,
        is_measured=is_measured,
        weight_bytes=weights + _bytes(states),
        step_bytes=None if kept is None else int(kept * scale),
        updates=length.updates,
        epochs=length.epochs,
    )


def _train(factory: Factory, size: int) -> tuple[Engine, StepWatch]:
    engine = factory.build()
    watch = StepWatch()
    engine.config.num_workers = 0
    engine.accumulate = 1
    watch.begin(
        size,
        max((_num_samples(engine) or 0) // size, 1),
        counts=engine.runtime.device.type == "cpu",
    )
    engine.callbacks = [watch]
    engine.run.bind(engine.callbacks)
    engine.train(engine.training_data(), num_updates=NUM_UPDATES, batch_size=size, resume=False)
    return engine, watch


def _num_samples(engine: Engine) -> int | None:
    stream = engine._open(engine.training_data(), None, shuffle=True)
    count = stream.num_samples
    stream.close()
    return count


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
