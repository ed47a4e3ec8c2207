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
from contextlib import ExitStack, contextmanager
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
from ...data.stream import Batch, Stream
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
from ..output import described, noted, table_lines
from .report import CheckReport, FewSamples

SAMPLES = 2  # per process and step: batch norm needs two, and activations are not measured
MAX_ROWS = 40
MAX_RANGES = 8
PARTS = ("parameters", "buffers", "gradients", "optimizer")  # two are known before a step
FACTS = ("mesh", "precision", "batch", "parameters", "memory", "collectives")


def check_program(program: Path, options: argparse.Namespace) -> CheckReport:
    """Run a program up to its second update, and report its layout."""
    report = CheckReport("program", str(program), facts=dict.fromkeys(FACTS))
    probe = DryRunProbe(report)
    strategy = parse_mesh(options.mesh) if options.mesh else options.runtime
    with DryRun(probe.watch, world=options.processes, strategy=strategy).running():
        error = _run_dry(program, options.arguments)
    if error is not None:
        is_own = isinstance(error, LoopwrightError)  # its message says all that matters
        if options.debug or not is_own:
            traceback.print_exception(error)
        report.mistake("", noted(error) if is_own else "\n  ".join(described(error)))
    report.text += probe.lines(is_full=options.all)
    return report


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes that `replicate=2,shard=4` names."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        if name not in AXES or not number.isdecimal() or name in sizes:
            raise ConfigurationError(
                "mesh-option",
                f"--mesh {text}: {part!r} is not one of {'=N, '.join(AXES)}=N, each at most once.",
            )
        sizes[name] = int(number)
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


class DryRunProbe(Callback):
    """Replaces all callbacks of a trainer, so that nothing is written, and ends it after two
    updates.

    The second is there to count its collectives, since the first has some of its own. There is none
    after the end of an epoch, which would evaluate. What it finds are the facts of the report;
    after a failure, those that are not known are None.
    """

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        self.facts = report.facts
        self._mesh: Mesh | None = None
        self._accumulate = 1
        self._others: Sequence[Callback] = ()
        self._must_resume = False
        self._has_stepped = False
        self._gradients: dict[int, Tensor] = {}
        self._stepped: set[str] = set()
        self._counting = ExitStack()
        self._counted: Counted | None = None
        self._traffic: list[str] = []

    def watch(self, trainer: Trainer) -> list[Callback]:
        """Examine a trainer whose models are built, and become its only callback."""
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
        self._mesh = mesh
        self._accumulate = trainer.accumulate
        self.facts["mesh"] = {axis: getattr(mesh, axis) for axis in AXES}
        self.facts["precision"] = runtime.precision
        self.facts["parameters"] = [
            {
                "name": name,
                "shape": tuple(param.shape),
                "dtype": str(param.dtype).removeprefix("torch."),
                "is_trained": param.requires_grad,
                "placement": placement_text(param),
                "local_shapes": [local_shape(param, rank, mesh) for rank in range(mesh.size)],
            }
            for name, param in _named(trainer.models)
        ]
        self._note_memory(trainer, mesh)
        return [self]

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        kind = stream
        for other in self._others:
            stream = other.adapt_stream(stream, is_training=is_training)
        if not is_training or self._mesh is None:
            return stream
        if self._must_resume:
            stream.check_resumable()
        stream.begin(0)
        batches = stream.take(1)
        if not batches:
            return stream  # the loop raises the error about it
        shares = self._mesh.data_size
        self._note_batch(kind, batches[0], shares)
        self.facts["batch"]["num_batches"] = stream.num_batches
        if self.report.mistakes:
            raise DryRunDone
        return FewSamples(stream, SAMPLES * shares)

    def _note_batch(self, kind: Stream, batch: Batch, shares: int) -> None:
        """Note how a batch is divided among the data-parallel processes."""
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
        self.facts["batch"] = {"total": total, "sizes": sizes, "how": how}

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
        if self._has_stepped and self._counted is None:
            self._counted = self._counting.enter_context(counted_collectives())

    def on_update_end(self, trainer: Trainer) -> None:
        if self._has_stepped:
            assert self._counted is not None
            self._counting.close()
            self._note_traffic(self._counted.collectives, estimated_traffic(trainer))
            raise DryRunDone
        self._has_stepped = True
        assert self._mesh is not None
        self._note_memory(trainer, self._mesh)
        for name in sorted(trainer.optimizers.keys() - self._stepped):
            took = "took no step in the first update, so its state is not known."
            self.report.note("", f"Optimizer {name!r} {took}")
        unused = [
            name
            for name, param in _named(trainer.models)
            if param.requires_grad and id(param) not in self._gradients
        ]
        if unused and self._stepped:
            names = listed(unused, 5)
            self.report.note("", f"No gradient in the first update: {names}. Is that intended?")

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self._counting.close()
        if self._has_stepped:
            raise DryRunDone

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._counting.close()

    def _note_memory(self, trainer: Trainer, mesh: Mesh) -> None:
        """Note the bytes on each process; None for what is not known yet."""
        modules = trainer.modules.values()
        parts: list[Iterable[Tensor]] = [
            {id(p): p for module in modules for p in module.parameters()}.values(),
            {id(b): b for module in modules for b in module.buffers()}.values(),
            self._gradients.values(),
            list(tensors_in([dict(each.state) for each in trainer.optimizers.values()])),
        ]
        self.facts["memory"] = []
        for rank in range(mesh.size):
            found = [sum(local_bytes(tensor, rank, mesh) for tensor in part) for part in parts]
            row: dict[str, int | None] = dict(zip(PARTS, found, strict=True))
            row["total"] = sum(found)
            if not self._has_stepped:
                row |= dict.fromkeys(("gradients", "optimizer", "total"))
            self.facts["memory"].append(row)

    def _note_traffic(
        self, collectives: Sequence[Collective], estimated: Sequence[Collective] | str
    ) -> None:
        """Note what was counted in an update beside the estimate, or why there is none."""
        self._traffic.append(f"Counted in an update, on each process: {_traffic_text(collectives)}")
        rows = None
        if isinstance(estimated, str):
            self._traffic.append(f"Not estimated by loopwright.scaling: {estimated}")
        else:
            rows = _traffic_rows(estimated)
            is_same = table_of(collectives) == table_of(estimated)
            what = "the same collectives, to the byte" if is_same else _traffic_text(estimated)
            self._traffic.append(f"Estimated by loopwright.scaling: {what}")
        self._traffic.append("")
        self.facts["collectives"] = {"counted": _traffic_rows(collectives), "estimated": rows}

    # The facts as lines

    def lines(self, *, is_full: bool) -> Iterator[str]:
        """The facts as text; `is_full` lists every parameter and every process."""
        mesh = self._mesh
        if mesh is None:
            return
        axes = ", ".join(f"{axis}={number}" for axis, number in self.facts["mesh"].items())
        yield f"{mesh.size} processes, {self.facts['precision']}: Mesh({axes})"
        yield ""
        if self.facts["batch"] is not None:
            yield from _batch_lines(self.facts["batch"], mesh, self._accumulate)
        if self.facts["parameters"]:
            yield from _parameter_lines(self.facts["parameters"], mesh.size, is_full=is_full)
        yield from self._memory_lines(mesh, is_full=is_full)
        yield from self._traffic

    def _memory_lines(self, mesh: Mesh, *, is_full: bool) -> Iterator[str]:
        """Bytes on each process; processes with equal numbers share a row."""
        memory = self.facts["memory"]
        known = [part for part, value in memory[0].items() if value is not None]
        groups: dict[object, list[int]] = {}
        for rank, row in enumerate(memory):
            groups.setdefault((rank if is_full else 0, *row.values()), []).append(rank)
        rows = [
            [_ranks_text(ranks), *(size(memory[ranks[0]][part]) for part in known)]
            for ranks in groups.values()
        ]
        yield from table_lines(["RANK", *(part.upper() for part in known)], rows, right="12345")
        missing = [] if self._has_stepped else ["gradients", "optimizer state"]
        missing.append("activations")
        if mesh.shard > 1:
            missing.append("the full parameters of the block that is computing")
            if self._accumulate > 1:
                missing.append("the full gradients that accumulation keeps until the update")
        yield from (f"Not counted: {', '.join(missing)}.", "")


def _named(models: dict[str, nn.Module]) -> Iterable[tuple[str, nn.Parameter]]:
    """Parameters by name; with several models the name of the model comes first."""
    for model_name, model in models.items():
        for name, param in model.named_parameters():
            yield (name if len(models) == 1 else f"{model_name}.{name}"), param


def estimated_traffic(trainer: Trainer) -> Sequence[Collective] | str:
    """The estimate for models that have taken their first update; without one, the reason."""
    runtime: Any = trainer.runtime
    mesh = runtime.mesh
    updates = list(trainer.run.updates.by_name.values())
    if mesh.tensor > 1:
        return "activations travel too, which `measure(module, batch, plan=...)` has to see"
    if len(trainer.models) != 1 or len(updates) != 1:
        return "it is for one model with one optimizer"
    (model,) = trainer.models.values()
    (update,) = updates
    params = [param for param in model.parameters() if param.requires_grad]
    if set(map(id, params)) != {id(param) for param in update.params if param.requires_grad}:
        return "the optimizer does not have the parameters of the model that are trained"
    training = UpdateSettings(
        batch=trainer.accumulate,  # samples make no difference to what is sent here
        accumulate=trainer.accumulate,
        param_dtype=runtime.sharding.param_dtype,
        reduce_dtype=runtime.sharding.reduce_dtype,
        reshard_after_forward=runtime.sharding.reshard_after_forward,
        clips=update.clip_norm is not None,
        is_host=runtime.is_host,
        bucket_bytes=runtime.averaging.max_bytes,
    )
    shape = shape_of(model, runtime.gradient_order(params))
    return collectives_of(shape, Sizes(mesh.replicate, mesh.shard), training)


def _batch_lines(batch: dict[str, Any], mesh: Mesh, accumulate: int) -> Iterator[str]:
    few = min(batch["sizes"])
    many = max(batch["sizes"])
    each = counted(few, "sample") if few == many else f"{few} or {many} samples"
    shares = len(batch["sizes"])
    if batch["how"] == "cut":
        share = f"{each} for each of {shares} data-parallel processes"
        yield f"A batch of {batch['total']} samples: {share}"
    else:
        yield f"Each of {shares} processes has batches of {each}: {batch['total']} in a step"
    if mesh.tensor > 1:
        who = f"the {mesh.tensor} processes that hold parts of the same layers"
        yield f"({who} see the same samples)"
    if batch["num_batches"] is not None:
        updates = -(-batch["num_batches"] // accumulate)
        yield f"An epoch: {counted(batch['num_batches'], 'step')}, {counted(updates, 'update')}"
    yield ""


def _parameter_lines(
    parameters: list[dict[str, Any]], world: int, *, is_full: bool
) -> Iterator[str]:
    ranks = range(world) if is_full else sorted({0, 1, world - 1})
    shown = parameters if is_full else parameters[:MAX_ROWS]
    rows = [
        [
            placed["name"] + ("" if placed["is_trained"] else " (frozen)"),
            _shape(placed["shape"]),
            placed["dtype"],
            placed["placement"],
            *(_shape(placed["local_shapes"][rank]) for rank in ranks),
        ]
        for placed in shown
    ]
    header = ["PARAMETER", "SHAPE", "DTYPE", "PLACEMENT", *(f"RANK {rank}" for rank in ranks)]
    yield from table_lines(header, rows)
    left = parameters[len(shown) :]
    if left:
        values = sum(prod(placed["shape"]) for placed in left)
        yield f"and {len(left)} more with {values:,} values (--all lists them)"
    yield ""


def _shape(shape: Sequence[int]) -> str:
    return "-" if 0 in shape else " x ".join(map(str, shape)) or "1"


def _ranks_text(ranks: Sequence[int]) -> str:
    """0, 1, 2, 6 as "0-2, 6"; a long list is cut."""
    texts = []
    for _, group in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in group]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(texts[:MAX_RANGES]) + (", ..." if len(texts) > MAX_RANGES else "")


def _traffic_rows(collectives: Iterable[Collective]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "bytes": payload, "processes": processes, "count": count}
        for (kind, payload, processes), count in table_of(collectives).items()
    ]


def _traffic_text(collectives: Sequence[Collective]) -> str:
    """How many there are of each kind, their bytes, and the bytes that the process sends."""
    counts: dict[str, int] = {}
    payloads: dict[str, int] = {}
    for each in collectives:
        counts[each.kind] = counts.get(each.kind, 0) + each.count
        payloads[each.kind] = payloads.get(each.kind, 0) + each.count * each.payload
    parts = [f"{counted(counts[kind], kind)} of {size(payloads[kind])}" for kind in counts]
    sent = sum(each.wire for each in collectives)
    return f"{', '.join(parts)}; {size(round(sent))} sent" if parts else "no collective"
