"""The dry run of a program: one update of its trainer among simulated processes, and what each of
them holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...callback import Callback
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.sharding import AlreadySharded, Shard, ShardedBatches
from ...data.stream import Batch, Stream, StreamWrapper
from ...metrics.progress import counted
from ...runtime.dry_run import DryRunDone, local_bytes, local_shape, placement_text
from ...runtime.dtensor import Mesh
from ...training.assembly import with_defaults
from ...training.required_metrics import check_required_metrics
from ..output import size_text, table_lines
from .report import Report
from .traffic import Traffic, UpdateCount, estimated_traffic

if TYPE_CHECKING:
    from ...trainer import Trainer

# per process in the one update: batch norm needs two, and memory for activations is not measured
SAMPLES = 2
MAX_ROWS = 40
MAX_PICTURE = 64
MAX_RUNS = 8
# of the memory; the first two before a step
PARTS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "total",
)


@dataclass(frozen=True, slots=True)
class Placement:
    """A parameter and the part of it that each rank holds."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_trained: bool
    placement: str
    local_shapes: list[tuple[int, ...]]  # by rank


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
    """How a batch is divided: its samples, the samples of each data-parallel rank, batches in an
    epoch."""

    total: int
    sizes: list[int]
    how: str
    num_batches: int | None


@dataclass(slots=True)
class Layout:
    """How a program is laid out over its processes; a program that fails half-way leaves the rest
    empty."""

    mesh: Mesh | None = None
    precision: str = ""
    accumulate: int = 1
    split: Split | None = None
    parameters: list[Placement] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    has_stepped: bool = False
    traffic: Traffic | None = None


class DryRunProbe(Callback):
    """Replaces all callbacks of a trainer, so that nothing is written, and ends it after two
    updates.

    The second is there to count its collectives, since the first has some of its own. There is none
    after the end of an epoch, which would evaluate.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.layout = Layout()
        self._others: Sequence[Callback] = ()
        self._must_resume = False
        self._gradients: dict[int, Tensor] = {}
        self._stepped: set[str] = set()
        self._count = UpdateCount()

    def watch(self, trainer: Trainer) -> list[Callback]:
        """Examine a trainer whose models are built, and become its only callback."""
        layout = self.layout
        runtime = trainer.runtime
        self._others = with_defaults(trainer)
        self._must_resume = trainer.run_dir is not None
        trainer.run_dir = None
        mesh = getattr(runtime, "mesh", None)
        if not isinstance(mesh, Mesh):
            self.report.mistake(
                "",
                f"The trainer asks for one device ({runtime.device}), so each process would train "
                "its own model: leave out `runtime=`, or use 'ddp', 'fsdp' or a Mesh.",
            )
            raise DryRunDone
        layout.mesh = mesh
        layout.precision = runtime.precision
        layout.accumulate = trainer.accumulate
        layout.parameters = list(_placements(trainer.models, mesh))
        layout.memory = self._memory(trainer, mesh)
        return [self]

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        kind = stream
        for other in self._others:
            stream = other.adapt_stream(stream, is_training=is_training)
        if not is_training or self.layout.mesh is None:
            return stream
        if self._must_resume:
            stream.check_resumable()
        stream.begin(0)
        batches = stream.take(1)
        if not batches:
            return stream  # the loop raises the error about it
        self._split(kind, stream, batches[0], self.layout.mesh.data_size)
        if self.report.mistakes:
            raise DryRunDone
        return FewSamples(stream, SAMPLES * self.layout.mesh.data_size)

    def _split(self, kind: Stream, stream: Stream, batch: Batch, shares: int) -> None:
        total = batch.size if batch.total is None else batch.total
        how = "cut"
        sizes = [Shard(rank, shares).size(total) for rank in range(shares)]
        if isinstance(kind, ShardedBatches | AlreadySharded):
            how = "ready batches" if isinstance(kind, ShardedBatches) else "already divided"
            sizes = [batch.size] * shares
        elif total < shares:
            self.report.mistake(
                "",
                f"A batch has {total} samples for {shares} data-parallel processes, so "
                f"{shares - total} of them would be idle: use a batch_size of {shares} or more "
                "(it counts the samples of all processes together).",
            )
        elif total % shares:
            message = f"{total} samples do not divide by {shares}: some processes wait for others."
            self.report.note("", f"{message} The result does not change.")
        if how == "ready batches" and total < batch.size * shares:
            self.report.mistake(
                "",
                f"The data comes in batches, one for each of {shares} processes, and there are "
                f"fewer than {shares}: pass the data set itself, so that batches can be divided.",
            )
        self.layout.split = Split(total, sizes, how, stream.num_batches)

    def on_train_start(self, trainer: Trainer) -> None:
        own = trainer.run.callbacks
        trainer.run.callbacks = list(self._others)
        try:
            check_required_metrics(trainer.run)
        finally:
            trainer.run.callbacks = own

    def on_optimizer_start(self, trainer: Trainer, optimizer: str) -> None:
        self._stepped.add(optimizer)
        guard = next((c for c in self._others if isinstance(c, NonFiniteGuard)), None)
        if guard is not None and guard.action != "off" and trainer.runtime.precision != "fp16":
            # the guard itself would see values that no rank has computed
            trainer.runtime.share_flag(torch.zeros(()))
        update = trainer.run.updates.by_name[optimizer]
        self._gradients |= {
            id(param): param.grad for param in update.params if param.grad is not None
        }

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if self.layout.has_stepped:
            self._count.start()

    def on_update_end(self, trainer: Trainer) -> None:
        layout = self.layout
        mesh = self.layout.mesh
        assert mesh is not None
        if layout.has_stepped:
            updates = list(trainer.run.updates.by_name.values())
            estimate = estimated_traffic(
                list(trainer.models.values()), updates, trainer.runtime, trainer.accumulate
            )
            layout.traffic = Traffic(self._count.stop(), *estimate)
            raise DryRunDone
        layout.memory = self._memory(trainer, mesh)
        layout.has_stepped = True
        for name in trainer.optimizers:
            if name not in self._stepped:
                self.report.note(
                    "",
                    f"Optimizer {name!r} took no step in the first update, so its state is not "
                    "known.",
                )
        named = [(name, param) for name, param in _named(trainer.models) if param.requires_grad]
        unused = [name for name, param in named if id(param) not in self._gradients]
        if unused and self._stepped:
            listed = ", ".join(unused[:5]) + (
                f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            )
            self.report.note("", f"No gradient in the first update: {listed}. Is that intended?")

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._count.stop()
        if self.layout.has_stepped:
            raise DryRunDone

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._count.stop()

    def _memory(self, trainer: Trainer, mesh: Mesh) -> list[Memory]:
        modules = trainer.modules.values()
        parameters = _unique(param for module in modules for param in module.parameters())
        buffers = _unique(buffer for module in modules for buffer in module.buffers())
        states = [
            value
            for optimizer in trainer.optimizers.values()
            for value in tensors_of(dict(optimizer.state))
        ]
        gradients = list(self._gradients.values())
        return [
            Memory(*(sum(local_bytes(tensor, rank, mesh) for tensor in part) for part in
                     (parameters, buffers, gradients, states)))
            for rank in range(mesh.size)
        ]  # fmt: skip


class FewSamples(StreamWrapper):
    """A stream with at most `max_samples` in a batch; order and sharding stay the same."""

    def __init__(self, stream: Stream, max_samples: int) -> None:
        super().__init__(stream)
        self._max_samples = max_samples

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        few = self._max_samples if max_samples is None else min(max_samples, self._max_samples)
        # a window keeps all its steps
        return [batch for _ in range(count) for batch in self._stream.take(1, few)]


def _named(models: dict[str, nn.Module]) -> Iterable[tuple[str, nn.Parameter]]:
    """Parameters by name; with several models the name of the model comes first."""
    for model_name, model in models.items():
        for name, param in model.named_parameters():
            yield (name if len(models) == 1 else f"{model_name}.{name}"), param


def _placements(models: dict[str, nn.Module], mesh: Mesh) -> Iterable[Placement]:
    for name, param in _named(models):
        shapes = [local_shape(param, rank, mesh) for rank in range(mesh.size)]
        dtype = str(param.dtype).removeprefix("torch.")
        yield Placement(
            name, tuple(param.shape), dtype, param.requires_grad, placement_text(param), shapes
        )


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def tensors_of(tree: Any) -> Iterable[Tensor]:
    """The tensors in nested dicts, lists and tuples."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(item)


def add_facts(report: Report, layout: Layout, *, is_full: bool) -> None:
    """Add the layout of a program to its report."""
    mesh = layout.mesh
    split = layout.split
    sizes = (
        None
        if mesh is None
        else {axis: getattr(mesh, axis) for axis in ("replicate", "shard", "tensor")}
    )
    report.fact("mesh", sizes, *(() if mesh is None else _mesh_lines(mesh, layout.precision)))
    report.fact("precision", layout.precision or None)
    report.fact(
        "batch", split and asdict(split), *(() if split is None else _split_lines(layout, split))
    )
    report.fact(
        "parameters",
        list(map(asdict, layout.parameters)),
        *_parameter_lines(layout, is_full=is_full),
    )
    report.fact("memory", _memory_json(layout), *_memory_lines(layout, is_full=is_full))
    traffic = layout.traffic
    report.fact(
        "collectives",
        traffic and traffic.to_json(),
        *(() if traffic is None else (*traffic.lines(), "")),
    )


def _memory_json(layout: Layout) -> list[dict[str, int | None]]:
    """Bytes on each process; None where they are only known after a step."""
    parts = _known_parts(layout)
    return [
        {part: getattr(memory, part) if part in parts else None for part in PARTS}
        for memory in layout.memory
    ]


def _known_parts(layout: Layout) -> tuple[str, ...]:
    return PARTS if layout.has_stepped else PARTS[:2]


def _mesh_lines(mesh: Mesh, precision: str) -> Iterator[str]:
    sizes = (mesh.replicate, mesh.shard, mesh.tensor)
    count = f"{mesh.size} process{'' if mesh.size == 1 else 'es'}"
    yield f"{count}, {precision}: Mesh(replicate={sizes[0]}, shard={sizes[1]}, tensor={sizes[2]})"
    if mesh.size <= MAX_PICTURE and sum(size > 1 for size in sizes) > 1:
        yield from _rank_lines(mesh)
    yield ""


def _rank_lines(mesh: Mesh) -> Iterator[str]:
    """The ranks as a picture: a row for each replica, in it groups of tensor-parallel ranks, one
    for each shard."""
    width = len(str(mesh.size - 1))
    for copy in range(mesh.replicate):
        groups = []
        for shard in range(mesh.shard):
            first = (copy * mesh.shard + shard) * mesh.tensor
            groups.append(
                "["
                + " ".join(f"{rank:{width}d}" for rank in range(first, first + mesh.tensor))
                + "]"
            )
        yield f"  copy {copy}: {' '.join(groups)}"


def _split_lines(layout: Layout, split: Split) -> Iterator[str]:
    few = min(split.sizes)
    many = max(split.sizes)
    each = counted(few, "sample") if few == many else f"{few} or {many} samples"
    shares = len(split.sizes)
    if split.how == "cut":
        yield (
            f"A batch of {split.total} samples: {each} for each of {shares} data-parallel processes"
        )
    else:
        what = (
            "takes a ready batch"
            if split.how == "ready batches"
            else "has its own data, with batches"
        )
        yield f"Each of {shares} processes {what} of {each}: {split.total} in a step"
    if layout.mesh is not None and layout.mesh.tensor > 1:
        yield (
            f"(the {layout.mesh.tensor} processes that hold parts of the same layers see the "
            "same samples)"
        )
    if split.num_batches is not None:
        updates = -(-split.num_batches // layout.accumulate)
        yield f"An epoch: {counted(split.num_batches, 'step')}, {counted(updates, 'update')}"
    yield ""


def _parameter_lines(layout: Layout, *, is_full: bool) -> Iterator[str]:
    if layout.mesh is None or not layout.parameters:
        return
    world = layout.mesh.size
    ranks = range(world) if is_full else sorted({0, 1, world - 1})
    shown = layout.parameters if is_full else layout.parameters[:MAX_ROWS]
    rows = [
        [
            placed.name + ("" if placed.is_trained else " (frozen)"),
            _shape(placed.shape),
            placed.dtype,
            placed.placement,
            *(_shape(placed.local_shapes[rank]) for rank in ranks),
        ]
        for placed in shown
    ]
    yield from table_lines(
        ["PARAMETER", "SHAPE", "DTYPE", "PLACEMENT", *(f"RANK {rank}" for rank in ranks)], rows
    )
    left = layout.parameters[len(shown) :]
    if left:
        yield (
            f"and {len(left)} more with {sum(prod(placed.shape) for placed in left):,} values "
            "(--all lists them)"
        )
    yield ""


def _shape(shape: Sequence[int]) -> str:
    return "-" if 0 in shape else " x ".join(map(str, shape)) or "1"


def _memory_lines(layout: Layout, *, is_full: bool) -> Iterator[str]:
    """Bytes on each process; processes with equal numbers share a row."""
    if layout.mesh is None or not layout.memory:
        return
    groups: dict[object, list[int]] = {}
    for rank, memory in enumerate(layout.memory):
        groups.setdefault((rank if is_full else 0, memory), []).append(rank)
    parts = _known_parts(layout)
    rows = [
        [_ranks_text(ranks), *(size_text(getattr(layout.memory[ranks[0]], part)) for part in parts)]
        for ranks in groups.values()
    ]
    yield from table_lines(["RANK", *(part.upper() for part in parts)], rows, right="12345")
    missing = [] if layout.has_stepped else ["gradients", "optimizer state"]
    missing.append("activations")
    if layout.mesh.shard > 1:
        missing.append("the full parameters of the block that is computing")
        missing += ["the full gradients that accumulation keeps until the update"] * (
            layout.accumulate > 1
        )
    yield from (f"Not counted: {', '.join(missing)}.", "")


def _ranks_text(ranks: Sequence[int]) -> str:
    """0, 1, 2, 6 as "0-2, 6"; a long list is cut."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts[:MAX_RUNS]) + (", ..." if len(texts) > MAX_RUNS else "")
