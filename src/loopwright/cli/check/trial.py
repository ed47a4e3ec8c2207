"""Tiny runs of a config: its steps alone, then with all callbacks, then saved and resumed.

A few steps with full batches then measure the memory and the time that the run needs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...callback import Callback
from ...callbacks import BestCheckpoint, BestModel, Checkpoints, PeakMemory, Throughput, TrainTime
from ...callbacks.freezing import Freeze
from ...callbacks.interval import Periodic, Watching
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.containers import tensors_in
from ...data.stream import Batch, Stream, StreamWrapper
from ...debug.resume_check import check_resume
from ...errors import ConfigurationError
from ...initializers import Initializer
from ...interfaces.configured.core import ConfiguredCore
from ...interfaces.configured.experiment import Experiment
from ...metrics.result import StepResult
from ...text import counted, duration, listed, size
from ...trainer import Trainer
from ...tuning.batch_size import TrialWatch
from .report import CheckReport

UPDATES = 2  # in an epoch
SAMPLES = 4  # in a batch
WINDOW = 2  # batches in an update that accumulates
EVAL_BATCHES = 2
NUM_UPDATES = 3
ENOUGH_SECONDS = 2.0  # for measuring full batches; slower ones are estimated from small ones
MAX_LISTED = 5
ESSENTIAL = (Initializer, Freeze, NonFiniteGuard)  # without them, steps compute something else


class Probe(Callback):
    """Records losses, gradients and weights of a tiny run."""

    precedence = 1

    def __init__(self) -> None:
        self.names: set[str] = set()  # of the metrics that steps return
        self.nonfinite: str | None = None
        self.without_gradient: list[str] = []
        self.has_learned = False
        self.largest_rate = 0.0
        self.is_finite = True
        self._before: dict[str, Tensor] = {}
        self._reached: set[str] = set()

    def on_train_start(self, trainer: Trainer) -> None:
        self._before = {name: param.detach().clone() for name, param in _trained(trainer)}

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self.names |= {"loss", *result.metrics}
        loss = float(result.loss.detach().sum()) if isinstance(result.loss, Tensor) else 0.0
        if not math.isfinite(loss):
            self.nonfinite = self.nonfinite or f"the loss of step {trainer.progress.step} is {loss}"

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._reached |= {name for name, param in _trained(trainer) if param.grad is not None}
        groups = trainer.optimizers[optimizer].param_groups
        self.largest_rate = max(self.largest_rate, *(float(g.get("lr", 1.0)) for g in groups))

    def on_loop_end(self, trainer: Trainer) -> None:
        now = dict(_trained(trainer))
        self.without_gradient = [name for name in now if name not in self._reached]
        self.has_learned = any(
            name not in self._before or not same([self._before[name]], [param.detach()])
            for name, param in now.items()
        )
        self.is_finite = all(bool(torch.isfinite(param.detach()).all()) for param in now.values())


def _trained(trainer: Trainer) -> list[tuple[str, nn.Parameter]]:
    """The parameters that require a gradient."""
    models = trainer.models.values()
    return [item for model in models for item in model.named_parameters() if item[1].requires_grad]


def same(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    """Whether tensors are equal bit for bit, with NaN equal to NaN."""
    return len(before) == len(now) and all(
        a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(before, now, strict=True)
    )


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
            left = self._few
            if max_samples is not None:
                left = min(max_samples - sum(batch.size for batch in batches), left)
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
        self.num_samples = self._stream.num_samples
        self.num_batches = self._stream.num_batches
        if self.num_samples and self.num_batches:
            self.num_batches = min(self._limit, -(-self.num_samples // self._few))
            self.num_samples = min(self._limit * self._few, self.num_samples)


class Tiny(Callback):
    """Replaces every stream of a trainer by a TinyStream."""

    precedence = -2

    def __init__(self, num_batches: int, num_samples: int) -> None:
        self._num_batches = num_batches
        self._num_samples = num_samples

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        num_batches = self._num_batches if is_training else EVAL_BATCHES
        return TinyStream(stream, num_batches, self._num_samples)


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
        # of the tiny engine that was built last, by their positions among all
        self.callbacks: dict[int, Callback] = {}

    def build(self) -> ConfiguredCore:
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
    ) -> ConfiguredCore:
        """Build an engine for a tiny run, without the callbacks at the positions in `dropped`."""
        engine = self.build()
        engine.run_dir = run_dir
        engine.accumulate = min(engine.accumulate, WINDOW)
        callbacks = enumerate(engine.run.callbacks)
        self.callbacks = {number: one for number, one in callbacks if number not in dropped}
        for callback in self.callbacks.values():
            if isinstance(callback, Periodic | Watching):
                callback.interval.n = 1
        tiny = Tiny(UPDATES * engine.accumulate, min(SAMPLES, engine.config.batch_size))
        engine.callbacks = [tiny, *self.callbacks.values(), *added]
        engine.run.bind(engine.callbacks)
        return engine


def _blame(
    report: CheckReport,
    factory: Factory,
    error: Exception,
    key: str,
    doing: str,
    doing_of_callback: str = "fails",
) -> int | None:
    """Report an error at the callback that it comes from, or else at a key; return the position of
    the callback."""
    number = _culprit(error, factory.callbacks)
    if number is None:
        report.failed(key, doing, error)
    else:
        name = type(factory.callbacks[number]).__name__
        own_key = report.key_of_callback(factory.build().run.callbacks, number)
        report.failed(own_key, f"{name} {doing_of_callback}", error)
    return number


def _culprit(error: BaseException, callbacks: Mapping[int, Callback]) -> int | None:
    """The position of the callback that raised an error or its cause, or that the error names."""
    positions = {id(callback): number for number, callback in callbacks.items()}
    cause = error.__cause__
    for trace in (error.__traceback__, None if cause is None else cause.__traceback__):
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            if id(owner) in positions:
                return positions[id(owner)]
            trace = trace.tb_next
    for number, callback in callbacks.items():
        name = type(callback).__name__
        watched = (f"{name} watches {metric!r}" for metric in callback.required_metrics())
        if any(words in str(error) for words in (f"'callbacks/{name}", *watched)):
            return number
    return None


def check_steps(report: CheckReport, factory: Factory) -> bool:
    """Train, evaluate and predict without callbacks; return whether training works."""
    probe = Probe()
    with report.collecting("trainer", "a small test run cannot be built") as built:
        callbacks = factory.build().run.callbacks
        extra = {i for i, callback in enumerate(callbacks) if not isinstance(callback, ESSENTIAL)}
        engine = factory.build_tiny(extra, [probe])
    if not built:
        return False
    try:
        engine.train(engine.training_data(), 1, resume=False)
    except Exception as error:
        _blame(report, factory, error, "trainer", "a training step fails")
        return False
    report.checked.append("training steps")
    _judge(report, probe, has_schedule=bool(engine.schedules))
    _check_evaluation(report, engine, probe)
    return True


def _judge(report: CheckReport, probe: Probe, *, has_schedule: bool) -> None:
    """Check losses, weights and gradients; a schedule may begin with a rate of 0."""
    if probe.nonfinite is not None:
        what = "Look at the data, the loss and the learning rate."
        report.mistake("trainer", f"{probe.nonfinite}.\n-> {what}")
    elif not probe.is_finite:
        what = "weights are not finite after the first updates.\n-> Lower the learning rate."
        report.mistake("model", what)
    elif not probe.has_learned and (probe.largest_rate > 0 or not has_schedule):
        what = "Is the learning rate 0, or the loss constant?"
        report.mistake("model", f"no weight has changed after the first updates.\n-> {what}")
    if probe.without_gradient and probe.has_learned:
        names = listed(probe.without_gradient, MAX_LISTED)
        report.note("model", f"no gradient reaches {names}. Is that intended?")


def _check_evaluation(report: CheckReport, engine: ConfiguredCore, probe: Probe) -> None:
    """Evaluate and predict on every data set."""
    measured: dict[str, float] | None = {}
    for key, dataset in engine.datasets.items():
        place = f"datasets.{key}"
        with report.collecting(place, f"data set {key!r} cannot be evaluated") as evaluated:
            measured = _evaluated(report, engine, dataset, place)
        if not evaluated:
            continue
        did = []
        if measured is not None:
            did.append("evaluation")
            if missing := sorted(probe.names - measured.keys()):
                found = f"{', '.join(sorted(measured))}, but not {', '.join(missing)}"
                what = "Return the same outputs and losses in eval mode as in train mode."
                text = f"evaluation measures {found} as training does.\n-> {what}"
                report.mistake("model", text)
        if engine.can_predict:
            did.append("prediction")
            with report.collecting(place, f"the outputs for data set {key!r} cannot be computed"):
                engine.predict(dataset)
        if did:
            report.checked.append(f"{' and '.join(did)} on {key}")


def _evaluated(
    report: CheckReport, engine: ConfiguredCore, dataset: Any, place: str
) -> dict[str, float] | None:
    """The metrics on a data set; None, with a note, where the trainer cannot evaluate."""
    try:
        return engine.evaluate(dataset)
    except ConfigurationError as error:
        if error.code != "update-in-evaluation":
            raise
        told = " ".join([str(error), *getattr(error, "__notes__", ())])
        report.note(place, f"this data set cannot be evaluated, if anything should. {told}")
        return None


def check_callbacks(
    report: CheckReport, factory: Factory, folder: Path
) -> tuple[set[int], ConfiguredCore | None]:
    """Train two tiny epochs with all callbacks; one that fails is left out of the next try.

    Returns the positions of failing callbacks, and the engine that trained.
    """
    dropped: set[int] = set()
    while True:
        engine = factory.build_tiny(dropped, run_dir=folder / f"run-{len(dropped)}")
        try:
            engine.train(engine.training_data(), 2, resume=False)
        except Exception as error:
            doing = "a small test run with all callbacks fails"
            failed = _blame(report, factory, error, "trainer", doing)
            if failed is None:
                return dropped, None
            dropped.add(failed)
        else:
            report.checked.append(counted(len(factory.callbacks), "callback"))
            return dropped, engine


def check_saving(
    report: CheckReport, factory: Factory, engine: ConfiguredCore, dropped: set[int], folder: Path
) -> int | None:
    """Save, and load into fresh objects; return the checkpoint's bytes, None on failure."""
    path = folder / "checkpoint"
    with report.collecting("model", "the state cannot be saved") as saved:
        engine.save(path)
    if not saved:
        return None
    fresh = factory.build_tiny(dropped)
    try:
        fresh.load(path)
    except Exception as error:
        doing = "the saved state cannot be loaded into new objects"
        _blame(report, factory, error, "model", doing, "cannot load its state")
        return None
    report.checked.append("saving and loading")
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def check_resuming(
    report: CheckReport, factory: Factory, dropped: Collection[int], folder: Path, num_updates: int
) -> None:
    """Compare an uninterrupted run with one that is saved and resumed in the middle."""
    made: list[Any] = []
    callbacks = factory.build_tiny(dropped).callbacks
    place = folder / "resumed" if _may_write(callbacks) else None

    def data() -> Any:
        engine = factory.build_tiny(dropped, run_dir=place)
        engine.config.num_workers = 0  # the order and the values are the same with any number
        made.append(engine)
        return engine.training_data()

    with report.collecting("trainer", "a resumed run fails"):
        resumed = check_resume(made.pop, data, num_updates=num_updates, ignore=_clocks(callbacks))
        if resumed.ok:
            report.checked.append("resuming")
        else:
            report.mistake("trainer", str(resumed))


def _clocks(callbacks: Sequence[Callback]) -> list[str]:
    """Patterns of state paths that depend on time or memory, and are never the same twice."""
    patterns: list[str] = []
    for callback in callbacks:
        if isinstance(callback, TrainTime | Throughput | PeakMemory):
            patterns += [f"*{name}*" for name in callback.metric_names(set())]
            patterns.append(f"callbacks.{type(callback).__name__}*")
    return patterns


def _may_write(callbacks: Sequence[Callback]) -> bool:
    """Whether a callback may need a run directory, which doubles the time of the comparison."""
    return any(
        isinstance(callback, Checkpoints | BestModel | BestCheckpoint)
        or not type(callback).__module__.startswith("loopwright.")
        for callback in callbacks
    )


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
        parameters = f"{self.parameters:,}" + (f", of which {frozen:,} frozen" if frozen else "")
        memory = f"{size(self.weight_bytes)} for weights, gradients and the optimizer"
        if self.step_bytes is not None:
            memory += f", and {size(self.step_bytes)} for a batch"
        step = "not measured"
        if self.step_seconds is not None:
            how = "measured" if self.is_measured else "estimated from smaller batches"
            step = f"{duration(self.step_seconds)} for a batch of {self.batch_size} ({how})"
        run = "of a length that is not known"
        if self.updates is not None:
            run = counted(round(self.updates), "update")
            run += "" if self.accumulate == 1 else f" of {self.accumulate} batches"
            run += "" if self.epochs is None else f", {counted(self.epochs, 'epoch')}"
        if self.seconds is not None:
            run += f": about {duration(self.seconds)} without evaluations"
        return {"parameters": parameters, "memory": memory, "step": step, "run": run}


def measure(factory: Factory, updates: float | None, epochs: float | None) -> Measures:
    """Measure time and memory of a few steps, on full batches unless that takes long."""
    engine, watch = _train(factory, SAMPLES)
    size = engine.config.batch_size
    full = min(size, _num_samples(engine) or size)
    guess = NUM_UPDATES * (watch.seconds or 0.0) * full / SAMPLES
    is_measured = full <= SAMPLES or guess < ENOUGH_SECONDS
    if is_measured and full > SAMPLES:
        engine, watch = _train(factory, full)
    scale = 1.0 if is_measured else full / SAMPLES
    modules = engine.modules.values()
    params = {id(p): p for module in modules for p in module.parameters()}.values()
    trained = [param for param in params if param.requires_grad]
    weights = _bytes(params) + _bytes(trained)
    weights += _bytes(buffer for module in modules for buffer in module.buffers())
    kept = watch.memory
    if kept is not None and engine.runtime.device.type != "cpu":
        kept = max(kept - weights, 0)
    states = tensors_in([dict(optimizer.state) for optimizer in engine.optimizers.values()])
    return Measures(
        parameters=sum(param.numel() for param in params),
        trained=sum(param.numel() for param in trained),
        batch_size=size,
        accumulate=engine.config.accumulate,
        step_seconds=None if watch.seconds is None else watch.seconds * scale,
        is_measured=is_measured,
        weight_bytes=weights + _bytes(states),
        step_bytes=None if kept is None else int(kept * scale),
        updates=updates,
        epochs=epochs,
    )


def _train(factory: Factory, size: int) -> tuple[ConfiguredCore, TrialWatch]:
    engine = factory.build()
    watch = TrialWatch()
    engine.config.num_workers = 0
    engine.accumulate = 1
    num_batches = max((_num_samples(engine) or 0) // size, 1)
    watch.begin(size, num_batches, counts=engine.runtime.device.type == "cpu")
    engine.callbacks = [watch]
    engine.run.bind(engine.callbacks)
    engine.train(engine.training_data(), num_updates=NUM_UPDATES, batch_size=size, resume=False)
    return engine, watch


def _num_samples(engine: ConfiguredCore) -> int | None:
    stream = engine._open(engine.training_data(), None, shuffle=True)
    count = stream.num_samples
    stream.close()
    return count


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
