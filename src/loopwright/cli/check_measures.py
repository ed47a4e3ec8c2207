"""What a run will need: parameters, memory, time for a step, and how long all of it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..tuning.memory import StepWatch
from .check_dry_run import tensors_of
from .check_schedule import Length
from .check_tiny import SAMPLES, Factory

if TYPE_CHECKING:
    from ..doors.configured.engine import Engine

NUM_UPDATES = 3
ENOUGH_SECONDS = 2.0  # for measuring full batches; slower ones are estimated from small ones


@dataclass(frozen=True, slots=True)
class Measures:
    """Numbers for a person who decides whether to start the run; None where they are not known."""

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

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds}


def measure(factory: Factory, length: Length) -> Measures:
    """Time and memory of a few steps, on full batches where that does not take long."""
    engine, watch = _train(factory, SAMPLES)
    size = engine.config.batch_size
    full = min(size, _num_samples(engine) or size)
    is_measured = full <= SAMPLES or NUM_UPDATES * (watch.seconds or 0.0) * full / SAMPLES < ENOUGH_SECONDS
    if is_measured and full > SAMPLES:
        engine, watch = _train(factory, full)
    scale = 1.0 if is_measured else full / SAMPLES
    params = {id(p): p for module in engine.modules.values() for p in module.parameters()}.values()
    trained = [param for param in params if param.requires_grad]
    states = (tensor for o in engine.optimizers.values() for tensor in tensors_of(dict(o.state)))
    weights = _bytes(params) + _bytes(trained) + _bytes(b for m in engine.modules.values() for b in m.buffers())
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
    engine, watch = factory.build(), StepWatch()
    engine.config.num_workers = 0
    engine.accumulate = 1
    watch.begin(size, max((_num_samples(engine) or 0) // size, 1), counts=engine.runtime.device.type == "cpu")
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
