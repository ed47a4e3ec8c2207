"""What a dry run finds out: one update of a trainer among pretended processes, and how everything is divided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..callback import Callback
from ..callbacks.defaults import with_defaults
from ..data.sharding import AlreadySharded, Shard, ShardedBatches
from ..data.stream import Batch, Stream, StreamAround
from ..runtime.dry_run import DryRunDone, local_bytes, local_shape, placement_text
from ..runtime.dtensor import Mesh
from ..training.required_metrics import check_required_metrics

if TYPE_CHECKING:
    from ..trainer import Trainer
    from ..training.program import Program

SAMPLES = 2  # of each process in the update that is taken: batch norm needs two, and memory is not what is tried


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter and who holds what of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_trained: bool
    placement: str
    local_shapes: list[tuple[int, ...]]
    """By rank."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one process."""

    parameters: int
    buffers: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.buffers + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class Split:
    """A batch and its division: samples by share of the data, batches in an epoch."""

    total: int
    sizes: list[int]
    how: str
    num_batches: int | None


@dataclass(slots=True)
class Report:
    """What is known so far; a program that fails half-way leaves the rest empty."""

    mesh: Mesh | None = None
    precision: str = ""
    accumulate: int = 1
    split: Split | None = None
    parameters: list[Held] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    has_stepped: bool = False
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


class Rehearsal(Callback):
    """Stands in for all callbacks of a trainer, so that nothing is written, and ends it after one update."""

    def __init__(self) -> None:
        self.report = Report()
        self._others: Sequence[Callback] = ()
        self._must_resume = False
        self._gradients: dict[int, Tensor] = {}
        self._stepped: set[str] = set()

    def watch(self, trainer: Program) -> list[Callback]:
        """Look at a trainer whose models are built, and be its only callback."""
        report, runtime = self.report, trainer.runtime
        self._others = with_defaults(trainer)
        self._must_resume = trainer.run_dir is not None
        trainer.run_dir = None
        mesh = getattr(runtime, "mesh", None)
        if not isinstance(mesh, Mesh):
            report.mistakes.append(
                f"The trainer asks for one device ({runtime.device}), so each process would train a model of its own: "
                "leave out `runtime=`, or use 'ddp', 'fsdp' or a Mesh."
            )
            raise DryRunDone
        report.mesh, report.precision, report.accumulate = mesh, runtime.precision, trainer.accumulate
        report.parameters = list(_held(trainer.models, mesh))
        report.memory = self._memory(trainer, mesh)
        return [self]

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        kind = stream
        for other in self._others:
            stream = other.adapt_stream(stream, is_training=is_training)
        if not is_training or self.report.mesh is None:
            return stream
        if self._must_resume:
            stream.check_resumable()
        stream.begin(0)
        batches = stream.take(1)
        if not batches:
            return stream  # the loop says what is wrong with it
        self._split(kind, stream, batches[0], self.report.mesh.data_size)
        if self.report.mistakes:
            raise DryRunDone
        return FewSamples(stream, SAMPLES * self.report.mesh.data_size)

    def _split(self, kind: Stream, stream: Stream, batch: Batch, shares: int) -> None:
        report = self.report
        total = batch.size if batch.total is None else batch.total
        how, sizes = "cut", [Shard(rank, shares).size(total) for rank in range(shares)]
        if isinstance(kind, ShardedBatches | AlreadySharded):
            how = "ready batches" if isinstance(kind, ShardedBatches) else "already divided"
            sizes = [batch.size] * shares
        elif total < shares:
            report.mistakes.append(
                f"A batch has {total} samples for {shares} processes that work on different ones, so "
                f"{shares - total} of them would have nothing to do: use a batch_size of {shares} or more (it is that "
                "of all processes together)."
            )
        elif total % shares:
            report.notes.append(
                f"{total} samples do not divide by {shares}: some processes wait for others. The result is the same."
            )
        if how == "ready batches" and total < batch.size * shares:
            report.mistakes.append(
                f"The data makes its own batches, of which each of {shares} processes takes one, and it has fewer than "
                f"{shares}: pass the data set itself, whose batches can be cut."
            )
        report.split = Split(total, sizes, how, stream.num_batches)

    def on_train_start(self, trainer: Trainer) -> None:
        own, trainer.run.callbacks = trainer.run.callbacks, list(self._others)
        try:
            check_required_metrics(trainer.run)
        finally:
            trainer.run.callbacks = own

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._stepped.add(optimizer)
        lane = trainer.run.optimization.lanes[optimizer]
        self._gradients |= {id(param): param.grad for param in lane.params if param.grad is not None}

    def on_update_end(self, trainer: Trainer) -> None:
        report, mesh = self.report, self.report.mesh
        assert mesh is not None
        report.memory, report.has_stepped = self._memory(trainer, mesh), True
        for name in trainer.optimizers:
            if name not in self._stepped:
                report.notes.append(f"Optimizer {name!r} took no step in the first update, so its state is not known.")
        named = [(name, param) for name, param in _named(trainer.models) if param.requires_grad]
        unused = [name for name, param in named if id(param) not in self._gradients]
        if unused and self._stepped:
            listed = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
            report.notes.append(f"No gradient in the first update: {listed}. That is allowed, if it is meant.")
        raise DryRunDone

    def _memory(self, trainer: Program, mesh: Mesh) -> list[Memory]:
        modules = trainer.modules.values()
        parameters = _unique(param for module in modules for param in module.parameters())
        buffers = _unique(buffer for module in modules for buffer in module.buffers())
        states = [value for optimizer in trainer.optimizers.values() for value in tensors_of(dict(optimizer.state))]
        gradients = list(self._gradients.values())
        return [
            Memory(*(sum(local_bytes(tensor, rank, mesh) for tensor in part) for part in
                     (parameters, buffers, gradients, states)))
            for rank in range(mesh.size)
        ]  # fmt: skip


class FewSamples(StreamAround):
    """Batches of at most so many samples, of a stream whose order and division are the same."""

    def __init__(self, stream: Stream, max_samples: int) -> None:
        super().__init__(stream)
        self._max_samples = max_samples

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        few = self._max_samples if max_samples is None else min(max_samples, self._max_samples)
        return self._stream.take(count, few)


def _named(models: dict[str, nn.Module]) -> Iterable[tuple[str, nn.Parameter]]:
    """Parameters under their names; with several models, the model's in front."""
    for model_name, model in models.items():
        for name, param in model.named_parameters():
            yield (name if len(models) == 1 else f"{model_name}.{name}"), param


def _held(models: dict[str, nn.Module], mesh: Mesh) -> Iterable[Held]:
    for name, param in _named(models):
        shapes = [local_shape(param, rank, mesh) for rank in range(mesh.size)]
        dtype = str(param.dtype).removeprefix("torch.")
        yield Held(name, tuple(param.shape), dtype, param.requires_grad, placement_text(param), shapes)


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def tensors_of(tree: Any) -> Iterable[Tensor]:
    """The tensors in nested dicts, lists and tuples."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(item)
