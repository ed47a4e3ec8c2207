"""How `loopwright check` prints what a rehearsal found."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ..training.progress import counted
from .output import RED, print_table, printable, size_text, styled

if TYPE_CHECKING:
    from ..runtime.dtensor import Mesh
    from .check_dry_run import Report

MAX_ROWS = 40
MAX_PICTURE = 64
MAX_RUNS = 8


def print_report(report: Report, world: int, *, is_full: bool) -> None:
    """Everything that is known, then notes, then mistakes."""
    if report.mesh is not None:
        _print_mesh(report.mesh, report.precision)
    if report.split is not None:
        _print_split(report)
    if report.parameters:
        _print_parameters(report, world, is_full=is_full)
    if report.memory:
        _print_memory(report, is_full=is_full)
    for note in report.notes:
        print(printable(f"note: {note}"))
    for mistake in report.mistakes:
        print(styled(printable(f"mistake: {mistake}", keep="\n"), RED))


def _print_mesh(mesh: Mesh, precision: str) -> None:
    sizes = (mesh.replicate, mesh.shard, mesh.tensor)
    count = f"{mesh.size} process{'' if mesh.size == 1 else 'es'}"
    print(f"{count}, {precision}: Mesh(replicate={sizes[0]}, shard={sizes[1]}, tensor={sizes[2]})")
    if mesh.size <= MAX_PICTURE and sum(size > 1 for size in sizes) > 1:
        _print_ranks(mesh)
    print()


def _print_ranks(mesh: Mesh) -> None:
    """The ranks as a picture: a row for each copy, in it the shards, in those the parts of layers."""
    width = len(str(mesh.size - 1))
    for copy in range(mesh.replicate):
        groups = []
        for shard in range(mesh.shard):
            first = (copy * mesh.shard + shard) * mesh.tensor
            groups.append("[" + " ".join(f"{rank:{width}d}" for rank in range(first, first + mesh.tensor)) + "]")
        print(f"  copy {copy}: {' '.join(groups)}")


def _print_split(report: Report) -> None:
    split = report.split
    assert split is not None
    few, many = min(split.sizes), max(split.sizes)
    each = counted(few, "sample") if few == many else f"{few} or {many} samples"
    shares = len(split.sizes)
    if split.how == "cut":
        print(f"A batch of {split.total} samples: {each} for each of {shares} processes that work on different ones")
    else:
        what = "takes a ready batch" if split.how == "ready batches" else "has data of its own, with batches"
        print(f"Each of {shares} processes {what} of {each}: {split.total} in a step")
    if report.mesh is not None and report.mesh.tensor > 1:
        print(f"(the {report.mesh.tensor} processes that hold parts of the same layers see the same samples)")
    if split.num_batches is not None:
        updates = -(-split.num_batches // report.accumulate)
        print(f"An epoch: {counted(split.num_batches, 'step')}, {counted(updates, 'update')}")
    print()


def _print_parameters(report: Report, world: int, *, is_full: bool) -> None:
    ranks = range(world) if is_full else sorted({0, 1, world - 1})
    shown = report.parameters if is_full else report.parameters[:MAX_ROWS]
    rows = [
        [
            held.name + ("" if held.is_trained else " (frozen)"),
            _shape(held.shape),
            held.dtype,
            held.placement,
            *(_shape(held.local_shapes[rank]) for rank in ranks),
        ]
        for held in shown
    ]
    print_table(["PARAMETER", "SHAPE", "DTYPE", "PLACEMENT", *(f"RANK {rank}" for rank in ranks)], rows)
    left = report.parameters[len(shown) :]
    if left:
        print(f"and {len(left)} more with {sum(prod(held.shape) for held in left):,} values (--all lists them)")
    print()


def _shape(shape: Sequence[int]) -> str:
    return "-" if 0 in shape else " x ".join(map(str, shape)) or "1"


def _print_memory(report: Report, *, is_full: bool) -> None:
    """Bytes of each process; those with the same share a row."""
    alike: dict[object, list[int]] = {}
    for rank, memory in enumerate(report.memory):
        alike.setdefault((rank if is_full else 0, memory), []).append(rank)
    parts = ("parameters", "buffers", *(("gradients", "optimizer", "total") if report.has_stepped else ()))
    rows = [
        [_ranks_text(ranks), *(size_text(getattr(report.memory[ranks[0]], part)) for part in parts)]
        for ranks in alike.values()
    ]
    print_table(["RANK", *(part.upper() for part in parts)], rows, right="12345")
    missing = [] if report.has_stepped else ["gradients", "optimizer state"]
    missing.append("activations")
    if report.mesh is not None and report.mesh.shard > 1:
        missing.append("the whole parameters of the block that computes")
    print(f"Not counted: {', '.join(missing)}.\n")


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
