"""`loopwright check PROGRAM`: two updates of a program among simulated processes.

The report says what each process holds, how a batch is divided, and which collectives an update has,
beside those that `loopwright.scaling` estimates for it.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...callback import Callback
from ...callbacks.nonfinite import NonFiniteGuard
from ...data.containers import tensors_in
from ...data.sharding import AlreadySharded, Shard, ShardedBatches
from ...data.stream import Batch, Stream, StreamWrapper
from ...errors import ConfigurationError, LoopwrightError
from ...runtime.dry_run import AXES, DryRun, DryRunDone, local_bytes, local_shape, placement_text
from ...runtime.dtensor import Mesh
from ...scaling.counting import Collective, Counted, counted_collectives, table_of
from ...scaling.layout import Sizes, UpdateSettings, collectives_of
from ...scaling.model import shape_of
from ...text import counted, listed, size
from ...trainer import Trainer
from ...training.assembly import with_defaults
from ...training.first_batch import check_required_metrics
from ...training.update import OptimizerUpdate
from ..exits import FOUND, OK, described
from ..output import table_lines
from .report import CheckReport

SAMPLES = 2  # per process and step: batch norm needs two, and activations are not measured
MAX_ROWS = 40
MAX_PICTURE = 64
MAX_RUNS = 8
PARTS = ("parameters", "buffers", "gradients", "optimizer", "total")  # two are known before a step


def check_program_command(program: Path, options: argparse.Namespace) -> int:
    """Run a program up to its second update, and report its layout."""
    if not program.is_file():
        raise ConfigurationError(
            "no-program",
            f"{program} is no file: name a run file (YAML), or the Python program that trains.",
        )
    report = CheckReport("program", str(program))
    probe = DryRunProbe(report)
    strategy = parse_mesh(options.mesh) if options.mesh else options.runtime
    dry_run = DryRun(probe.watch, world=options.processes, strategy=strategy)
    with dry_run.running(), redirect_stdout(sys.stderr) if options.json else nullcontext():
        error = _run_dry(program, options.arguments)
    if error is not None:
        is_own = isinstance(error, LoopwrightError)  # its message says all that matters
        if options.debug or not is_own:
            traceback.print_exception(error)
        report.mistake("", str(error) if is_own else "\n  ".join(described(error)))
    add_facts(report, probe.layout, is_full=options.all)
    report.print(as_json=options.json)
    return FOUND if report.mistakes else OK


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes that `replicate=2,shard=4` names."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name.strip() not in AXES or not number.strip().isdecimal() or name.strip() in sizes:
            raise ConfigurationError(
                "mesh-option",
                f"--mesh {text}: {part!r} is not one of {'=N, '.join(AXES)}=N, each at most once.",
            )
        sizes[name.strip()] = int(number)
    return sizes


def _run_dry(program: Path, arguments: Sequence[str]) -> Exception | None:
    """Run the program up to its second update; the exception that it raised, if any."""
    ending = "ended without calling `train`, so there was nothing to check"
    try:
        with _as_main(program, arguments):
            runpy.run_path(str(program), run_name="__main__")
    except DryRunDone:
        return None
    except SystemExit as left:
        ending = f"exited with code {left.code} before it trained: put its arguments after its name"
    except Exception as error:
        return error
    raise ConfigurationError("program-ended", f"{program} {ending}.")


@contextmanager
def _as_main(program: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as `python program arguments` would."""
    argv = sys.argv
    path = sys.path
    sys.argv = [str(program), *arguments]
    sys.path = [str(program.parent.absolute()), *path]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path = path


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
class RankMemory:
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
    """How a batch is divided: its samples, those of each data-parallel rank, batches in an epoch."""

    total: int
    sizes: list[int]
    how: str
    num_batches: int | None


@dataclass(slots=True)
class ProgramLayout:
    """How a program is laid out over its processes; after a failure, the rest is empty."""

    mesh: Mesh | None = None
    precision: str = ""
    accumulate: int = 1
    split: Split | None = None
    parameters: list[Placement] = field(default_factory=list)
    memory: list[RankMemory] = field(default_factory=list)
    has_stepped: bool = False
    counted: Sequence[Collective] | None = None  # in the second update
    estimated: Sequence[Collective] | str = ""  # why there is no estimate, if it is a text


class DryRunProbe(Callback):
    """Replaces all callbacks of a trainer, so that nothing is written, and ends it after two
    updates.

    The second is there to count its collectives, since the first has some of its own. There is none
    after the end of an epoch, which would evaluate.
    """

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        self.layout = ProgramLayout()
        self._others: Sequence[Callback] = ()
        self._must_resume = False
        self._gradients: dict[int, Tensor] = {}
        self._stepped: set[str] = set()
        self._counting = ExitStack()
        self._counted: Counted | None = None

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
        params = trainer.run.updates.by_name[optimizer].params
        self._gradients |= {id(param): param.grad for param in params if param.grad is not None}

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if self.layout.has_stepped and self._counted is None:
            self._counted = self._counting.enter_context(counted_collectives())

    def on_update_end(self, trainer: Trainer) -> None:
        layout = self.layout
        mesh = layout.mesh
        assert mesh is not None
        if layout.has_stepped:
            layout.estimated = estimated_traffic(
                list(trainer.models.values()),
                list(trainer.run.updates.by_name.values()),
                trainer.runtime,
                trainer.accumulate,
            )
            self._counting.close()
            layout.counted = () if self._counted is None else self._counted.collectives
            raise DryRunDone
        layout.memory = self._memory(trainer, mesh)
        layout.has_stepped = True
        for name in sorted(trainer.optimizers.keys() - self._stepped):
            took = "took no step in the first update, so its state is not known."
            self.report.note("", f"Optimizer {name!r} {took}")
        named = [(name, param) for name, param in _named(trainer.models) if param.requires_grad]
        unused = [name for name, param in named if id(param) not in self._gradients]
        if unused and self._stepped:
            names = listed(unused, 5)
            self.report.note("", f"No gradient in the first update: {names}. Is that intended?")

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._counting.close()
        if self.layout.has_stepped:
            raise DryRunDone

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._counting.close()

    def _memory(self, trainer: Trainer, mesh: Mesh) -> list[RankMemory]:
        modules = trainer.modules.values()
        parts: list[Iterable[Tensor]] = [
            _unique(param for module in modules for param in module.parameters()),
            _unique(buffer for module in modules for buffer in module.buffers()),
            self._gradients.values(),
            list(tensors_in([dict(each.state) for each in trainer.optimizers.values()])),
        ]
        return [
            RankMemory(*(sum(local_bytes(t, rank, mesh) for t in part) for part in parts))
            for rank in range(mesh.size)
        ]


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
        yield Placement(
            name,
            shape=tuple(param.shape),
            dtype=str(param.dtype).removeprefix("torch."),
            is_trained=param.requires_grad,
            placement=placement_text(param),
            local_shapes=[local_shape(param, rank, mesh) for rank in range(mesh.size)],
        )


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def estimated_traffic(
    models: Sequence[nn.Module], updates: Sequence[OptimizerUpdate], runtime: Any, accumulate: int
) -> Sequence[Collective] | str:
    """The estimate for models that have taken their first update; without one, the reason."""
    mesh = runtime.mesh
    if mesh.tensor > 1:
        return "activations travel too, which `measure(module, batch, plan=...)` has to see"
    if len(models) != 1 or len(updates) != 1:
        return "it is for one model with one optimizer"
    (model,) = models
    (update,) = updates
    params = [param for param in model.parameters() if param.requires_grad]
    if set(map(id, params)) != {id(param) for param in update.params if param.requires_grad}:
        return "the optimizer does not have the parameters of the model that are trained"
    training = UpdateSettings(
        batch=accumulate,  # samples make no difference to what is sent here
        accumulate=accumulate,
        param_dtype=runtime.sharding.param_dtype,
        reduce_dtype=runtime.sharding.reduce_dtype,
        reshard_after_forward=runtime.sharding.reshard_after_forward,
        clips=update.clip_norm is not None,
        is_host=runtime.is_host,
        bucket_bytes=runtime.averaging.max_bytes,
    )
    shape = shape_of(model, runtime.gradient_order(params))
    return collectives_of(shape, Sizes(mesh.replicate, mesh.shard), training)


# The report


def add_facts(report: CheckReport, layout: ProgramLayout, *, is_full: bool) -> None:
    """Add the layout of a program to its report."""
    mesh = layout.mesh
    sizes = None if mesh is None else {axis: getattr(mesh, axis) for axis in AXES}
    report.fact("mesh", sizes, *_mesh_lines(layout))
    report.fact("precision", layout.precision or None)
    report.fact("batch", layout.split and asdict(layout.split), *_split_lines(layout))
    parameters = list(map(asdict, layout.parameters))
    report.fact("parameters", parameters, *_parameter_lines(layout, is_full=is_full))
    known = PARTS if layout.has_stepped else PARTS[:2]
    memory = [
        {part: getattr(each, part) if part in known else None for part in PARTS}
        for each in layout.memory
    ]
    report.fact("memory", memory, *_memory_lines(layout, known, is_full=is_full))
    traffic = None
    if layout.counted is not None:
        estimated = None if isinstance(layout.estimated, str) else _traffic_rows(layout.estimated)
        traffic = {"counted": _traffic_rows(layout.counted), "estimated": estimated}
    report.fact("collectives", traffic, *_traffic_lines(layout))


def _mesh_lines(layout: ProgramLayout) -> Iterator[str]:
    """The mesh, and its ranks as a picture: a row for each replica, in it a group per shard."""
    mesh = layout.mesh
    if mesh is None:
        return
    count = f"{mesh.size} process{'' if mesh.size == 1 else 'es'}"
    sizes = f"replicate={mesh.replicate}, shard={mesh.shard}, tensor={mesh.tensor}"
    yield f"{count}, {layout.precision}: Mesh({sizes})"
    is_flat = sum(size > 1 for size in (mesh.replicate, mesh.shard, mesh.tensor)) < 2
    width = len(str(mesh.size - 1))
    for copy in range(0 if is_flat or mesh.size > MAX_PICTURE else mesh.replicate):
        groups = []
        for shard in range(mesh.shard):
            first = (copy * mesh.shard + shard) * mesh.tensor
            ranks = range(first, first + mesh.tensor)
            groups.append(f"[{' '.join(f'{rank:{width}d}' for rank in ranks)}]")
        yield f"  copy {copy}: {' '.join(groups)}"
    yield ""


def _split_lines(layout: ProgramLayout) -> Iterator[str]:
    split = layout.split
    if split is None:
        return
    few = min(split.sizes)
    many = max(split.sizes)
    each = counted(few, "sample") if few == many else f"{few} or {many} samples"
    shares = len(split.sizes)
    if split.how == "cut":
        share = f"{each} for each of {shares} data-parallel processes"
        yield f"A batch of {split.total} samples: {share}"
    else:
        own = "has its own data, with batches"
        what = "takes a ready batch" if split.how == "ready batches" else own
        yield f"Each of {shares} processes {what} of {each}: {split.total} in a step"
    if layout.mesh is not None and layout.mesh.tensor > 1:
        who = f"the {layout.mesh.tensor} processes that hold parts of the same layers"
        yield f"({who} see the same samples)"
    if split.num_batches is not None:
        updates = -(-split.num_batches // layout.accumulate)
        yield f"An epoch: {counted(split.num_batches, 'step')}, {counted(updates, 'update')}"
    yield ""


def _parameter_lines(layout: ProgramLayout, *, is_full: bool) -> Iterator[str]:
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
    header = ["PARAMETER", "SHAPE", "DTYPE", "PLACEMENT", *(f"RANK {rank}" for rank in ranks)]
    yield from table_lines(header, rows)
    left = layout.parameters[len(shown) :]
    if left:
        values = sum(prod(placed.shape) for placed in left)
        yield f"and {len(left)} more with {values:,} values (--all lists them)"
    yield ""


def _shape(shape: Sequence[int]) -> str:
    return "-" if 0 in shape else " x ".join(map(str, shape)) or "1"


def _memory_lines(layout: ProgramLayout, parts: Sequence[str], *, is_full: bool) -> Iterator[str]:
    """Bytes on each process; processes with equal numbers share a row."""
    if layout.mesh is None or not layout.memory:
        return
    groups: dict[object, list[int]] = {}
    for rank, memory in enumerate(layout.memory):
        groups.setdefault((rank if is_full else 0, memory), []).append(rank)
    rows = [
        [_ranks_text(ranks), *(size(getattr(layout.memory[ranks[0]], part)) for part in parts)]
        for ranks in groups.values()
    ]
    yield from table_lines(["RANK", *(part.upper() for part in parts)], rows, right="12345")
    missing = [] if layout.has_stepped else ["gradients", "optimizer state"]
    missing.append("activations")
    if layout.mesh.shard > 1:
        missing.append("the full parameters of the block that is computing")
        if layout.accumulate > 1:
            missing.append("the full gradients that accumulation keeps until the update")
    yield from (f"Not counted: {', '.join(missing)}.", "")


def _ranks_text(ranks: Sequence[int]) -> str:
    """0, 1, 2, 6 as "0-2, 6"; a long list is cut."""
    texts = []
    for _, group in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(texts[:MAX_RUNS]) + (", ..." if len(texts) > MAX_RUNS else "")


def _traffic_rows(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "bytes": payload, "processes": processes, "count": count}
        for (kind, payload, processes), count in table_of(collectives).items()
    ]


def _traffic_lines(layout: ProgramLayout) -> Iterator[str]:
    """One line for what was counted, one for the estimate."""
    if layout.counted is None:
        return
    yield f"Counted in an update, on each process: {_traffic_text(layout.counted)}"
    if isinstance(layout.estimated, str):
        yield f"Not estimated by loopwright.scaling: {layout.estimated}"
    elif table_of(layout.counted) == table_of(layout.estimated):
        yield "Estimated by loopwright.scaling: the same collectives, to the byte"
    else:
        yield f"Estimated by loopwright.scaling: {_traffic_text(layout.estimated)}"
    yield ""


def _traffic_text(collectives: Sequence[Collective]) -> str:
    """How many there are of each kind, their bytes, and the bytes that the process sends."""
    kinds: dict[str, list[int]] = {}
    for (kind, payload, _), count in table_of(collectives).items():
        found = kinds.setdefault(kind, [0, 0])
        found[0] += count
        found[1] += count * payload
    parts = [
        f"{counted(count, kind)} of {size(payload)}" for kind, (count, payload) in kinds.items()
    ]
    sent = sum(each.wire for each in collectives)
    return f"{', '.join(parts)}; {size(round(sent))} sent" if parts else "no collective"
