"""Tensors that are sharded over processes: which region this one holds, how all of them write one
checkpoint, and how a region is restored.

Each process writes its part to a shared place, and the first commits when all are there. Beside
`shard-{rank}.safetensors` every process leaves a record of it, last and in one step, so a record
that can be seen speaks for a part that is complete. The first process turns the records into the
table of shards.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._torch_compat.distributed import dtensor_type, local_shape_and_offset, root_mesh
from ..errors import CheckpointError
from .atomic import FileRecord, write_bytes
from .layout import (
    SHARDS,
    Box,
    Numbers,
    StoredShard,
    TensorLayout,
    layouts_in,
    layouts_table,
    parse_json,
    record_of,
    table_of,
    whole,
)
from .tensors import DTYPES, StoredTensor, Tree, map_tree, refusal, split_tied, write_tensors

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

LEAVING_SECONDS = 5.0
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.1
PATIENCE_SECONDS = 600.0  # that rank 0 waits for the parts of the others


@dataclass(frozen=True, slots=True)
class Group:
    """One of the processes that write a checkpoint together.

    Args:
        rank: The number of this process, from 0.
        world: The number of processes.

    Example:
        >>> from loopwright.checkpoint import Group
        >>> Group(rank=1, world=2).is_main
        False
    """

    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes what all have in common, and commits."""
        return self.rank == 0


SINGLE = Group()


@dataclass(frozen=True, slots=True)
class TensorShard:
    """The region of a sharded tensor that this process holds.

    Of the processes that hold the same region, the primary one writes it.

    Args:
        local: The values of the region.
        box: Where the region is in the full tensor.
        shape: The shape of the full tensor.
        is_primary: Whether this process writes the region.
    """

    local: Tensor
    box: Box
    shape: Numbers
    is_primary: bool

    @property
    def is_written(self) -> bool:
        return self.is_primary and 0 not in self.box.shape

    def stored_as(self, stored: Tensor) -> TensorShard:
        """The same shard in the form its values are stored in, which may have dimensions more
        (complex numbers)."""
        extra = tuple(stored.shape[self.local.dim() :])
        box = Box(self.box.offsets + (0,) * len(extra), self.box.shape + extra)
        return replace(self, local=stored, box=box, shape=self.shape + extra)


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a DTensor."""
    kind = dtensor_type()
    return kind is not None and isinstance(value, kind)


def shard_of(tensor: DTensor, path: str = "") -> TensorShard:
    """This process's part of a tensor, without a copy."""
    mesh = tensor.device_mesh
    placements = tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise refusal(
            path,
            tensor,
            "reduce it first (`redistribute` to Shard or Replicate)",
            "an unreduced DTensor",
        )
    with torch.no_grad():
        local = tensor.to_local()
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # a mesh that this process is no part of
        shape = tuple(tensor.shape)
        return TensorShard(
            local, Box((0,) * len(shape), (0,) * len(shape)), shape, is_primary=False
        )
    is_copy = any(
        at and placement.is_replicate()
        for at, placement in zip(coordinate, placements, strict=True)
    )
    return TensorShard(
        local, box_of(tensor), tuple(tensor.shape), is_primary=not is_copy and _is_first(mesh)
    )


_first: WeakKeyDictionary[DeviceMesh, bool] = WeakKeyDictionary()


def _is_first(mesh: DeviceMesh) -> bool:
    """Whether this mesh is the first of its kind in a larger mesh.

    A tensor that is sharded over one of two mesh dimensions is there once for each rank of the
    other: with tensor parallelism, the layers that are not part of it.
    """
    if (is_first := _first.get(mesh)) is None:
        root = root_mesh(mesh)
        is_first = _first[mesh] = (
            root is mesh or int(root.mesh.flatten()[0]) in mesh.mesh.flatten().tolist()
        )
    return is_first


# finding one out takes torch 0.1 ms, and a model has thousands
_boxes: dict[tuple[Any, ...], Box] = {}


def box_of(tensor: DTensor) -> Box:
    """The region of a tensor that this process holds."""
    mesh = tensor.device_mesh
    shape = tuple(tensor.shape)
    key = (shape, tuple(mesh.shape), tuple(mesh.get_coordinate() or ()), tensor.placements)
    if (box := _boxes.get(key)) is None:
        local, offsets = local_shape_and_offset(tensor.shape, mesh, tensor.placements)
        box = _boxes[key] = Box(tuple(map(int, offsets)), tuple(map(int, local)))
    return box


def region_of(tensor: Tensor) -> tuple[Tensor, Box]:
    """The memory that a tensor has in this process, and the box it is of the whole: all of it for a
    plain tensor."""
    if not is_dtensor(tensor):
        return tensor.detach(), whole(tuple(tensor.shape))
    shard = shard_of(tensor)
    return shard.local, shard.box


# Several processes write one checkpoint


def part_name(rank: int) -> str:
    """The file with the shards of one process."""
    return f"shard-{rank}.safetensors"


def write_part(staging: Path, rank: int, shards: Mapping[str, TensorShard]) -> None:
    """Write this process's shards, then the record that says so; a failure is recorded too, for the
    first process."""
    try:
        own = {key: shard for key, shard in shards.items() if shard.is_written}
        tensors = {key: shard.local for key, shard in own.items()}
        _, tied = split_tied(tensors)
        layouts = {}
        for key, shard in own.items():
            stored = StoredShard(part_name(rank), tied.get(key, key), shard.box)
            layouts[key] = TensorLayout(DTYPES[shard.local.dtype], shard.shape, (stored,))
        # no file where this process holds nothing of its own
        file = write_tensors(staging / part_name(rank), tensors) if own else None
        _write_record(staging, rank, {"file": file and asdict(file), **layouts_table(layouts)})
    except BaseException as error:
        with suppress(OSError):
            _write_record(staging, rank, {"error": f"{type(error).__name__}: {error}"})
        raise


def gather_parts(
    staging: Path, group: Group, shards: Mapping[str, TensorShard], stop: threading.Event
) -> dict[str, FileRecord]:
    """Wait until every process has written its part, and write the table of shards; the files that
    came of it."""
    files: dict[str, FileRecord] = {}
    layouts = {
        key: TensorLayout(DTYPES[shard.local.dtype], shard.shape, ())
        for key, shard in shards.items()
    }
    for rank, (file, parts) in sorted(_wait_for_parts(staging, group, stop).items()):
        if file is not None:
            files[part_name(rank)] = file
        for key, part in parts.items():
            own = layouts.get(key)
            if own is None or (part.dtype, part.shape) != (own.dtype, own.shape):
                stated = "nothing" if own is None else f"{own.dtype} {list(own.shape)}"
                raise CheckpointError(
                    "ranks-save-differently",
                    f"Rank {rank} saves {key!r} as part of {part.dtype} {list(part.shape)}, rank "
                    f"0 has {stated} of that name: all processes must save the same state at the "
                    "same update.",
                )
            layouts[key] = replace(own, shards=own.shards + part.shards)
    for key, layout in layouts.items():
        if problem := layout.find_problem():
            raise CheckpointError(
                "shards-incomplete",
                f"The parts that the processes wrote do not make up {key!r}: {problem}.",
            )
    for rank in range(group.world):
        os.unlink(staging / _record_name(rank))  # all they say is in the table now
    table = json.dumps(layouts_table(layouts), separators=(",", ":")).encode()
    return files | {SHARDS: write_bytes(staging / SHARDS, table)}


Part: TypeAlias = tuple[FileRecord | None, dict[str, TensorLayout]]  # what one process wrote


def _wait_for_parts(staging: Path, group: Group, stop: threading.Event) -> dict[int, Part]:
    parts: dict[int, Part] = {}
    deadline = time.monotonic() + PATIENCE_SECONDS
    end = f"in {PATIENCE_SECONDS:g} s"
    pause = SHORTEST_PAUSE
    is_leaving = False
    while True:
        for rank in range(group.world):
            if rank not in parts and (staging / _record_name(rank)).exists():
                parts[rank] = _read_record(staging, rank)
        missing = [str(rank) for rank in range(group.world) if rank not in parts]
        if not missing:
            return parts
        if is_abandoned := stop.wait(pause):
            end = "before the save was abandoned"
        elif not is_leaving and not threading.main_thread().is_alive():
            # The program is over. The others' is too, and they had no more to write than this one.
            is_leaving = True
            end = "before the program ended"
            deadline = min(deadline, time.monotonic() + LEAVING_SECONDS)
        if is_abandoned or time.monotonic() > deadline:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            raise CheckpointError(
                "rank-wrote-nothing",
                f"The checkpoint is not complete: {ranks} of {group.world} did not write a part "
                f"{end}. Find out what happened to that process; earlier checkpoints are "
                "unchanged.",
            )
        pause = min(2 * pause, LONGEST_PAUSE)


def _record_name(rank: int) -> str:
    return f"shard-{rank}.json"


def _write_record(staging: Path, rank: int, content: dict[str, object]) -> None:
    """A record appears in one step, after everything it speaks for is durable.

    Its name becomes durable with the directory, which the first process syncs and may have renamed
    by now.
    """
    path = staging / _record_name(rank)
    unfinished = path.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    write_bytes(unfinished, json.dumps(content).encode())
    os.replace(unfinished, path)


def _read_record(staging: Path, rank: int) -> Part:
    path = staging / _record_name(rank)
    name = part_name(rank)
    try:
        content = table_of(parse_json(path.read_bytes(), str(path)))
        if "error" in content:
            raise CheckpointError(
                "rank-could-not-write",
                f"Rank {rank} could not write its part of the checkpoint: {content['error']}",
            )
        file = None if content["file"] is None else record_of(content["file"])
        layouts = layouts_in(content)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            "malformed-shards", f"{path} is malformed ({error!r}): check the storage."
        ) from None
    if file is not None and (size := (staging / name).stat().st_size) != file.size:
        raise CheckpointError(
            "shard-size",
            f"{name} has {size} bytes, rank {rank} wrote {file.size}: check the storage.",
        )
    return file, layouts


# Restoring


Source: TypeAlias = Tensor | StoredTensor | TensorShard


def restore_into(target: Tensor, source: Source) -> None:
    """Copy a tensor of a checkpoint or snapshot into an existing tensor, full or sharded (a
    DTensor).

    Only the region that this process holds is read; no process waits for another.

    Args:
        target: The tensor that is overwritten.
        source: The tensor of the same shape, in memory or stored.

    >>> import torch
    >>> from loopwright.checkpoint import restore_into
    >>> weight = torch.zeros(2)
    >>> restore_into(weight, torch.tensor([1.0, 2.0]))
    >>> weight
    tensor([1., 2.])
    """
    if target.is_meta:
        raise CheckpointError(
            "meta-tensor",
            "A tensor on the meta device has no memory to restore into: materialise it first.",
        )
    if tuple(target.shape) != tuple(source.shape):
        raise CheckpointError(
            "tensor-shape",
            f"A tensor of {list(source.shape)} cannot be restored into one of "
            f"{list(target.shape)}: build the same model as the run that wrote it.",
        )
    local, box = region_of(target)
    with torch.no_grad():
        local.copy_(_read(source, box))


def place_like(source: Source, like: Tensor) -> Tensor:
    """Return the tensor sharded as another of its shape is; full where that one is full, or has
    another shape.

    Args:
        source: The tensor, in memory or stored.
        like: The tensor whose device mesh and placements are used.

    >>> import torch
    >>> from loopwright.checkpoint import place_like
    >>> place_like(torch.tensor([1.0]), torch.zeros(1))
    tensor([1.])
    """
    if not is_dtensor(like) or tuple(source.shape) != tuple(like.shape):
        values = _read(source, whole(tuple(source.shape)))
        return values if isinstance(source, StoredTensor) else values.clone()
    from torch.distributed.tensor import DTensor

    local, box = region_of(like)
    values = _read(source, box).to(local.device, copy=not isinstance(source, StoredTensor))
    return DTensor.from_local(
        values,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def load_stored(tree: Tree) -> Tree:
    """Return the tree with every stored tensor read from its file; the rest of it is the same.

    >>> from loopwright.checkpoint import load_stored
    >>> load_stored({"epoch": 3})
    {'epoch': 3}
    """
    return map_tree(lambda leaf: leaf.read() if isinstance(leaf, StoredTensor) else leaf, tree)


def _read(source: Source, box: Box) -> Tensor:
    if isinstance(source, StoredTensor):
        return source.read_box(box.offsets, box.shape)
    if is_dtensor(source):
        source = shard_of(source)
    if not isinstance(source, TensorShard):
        return source.detach()[box.slices]
    if source.box != box:
        raise CheckpointError(
            "snapshot-mismatch",
            f"A snapshot holds the part at {list(source.box.offsets)} of "
            f"{list(source.box.shape)}, but the part at {list(box.offsets)} of {list(box.shape)} "
            "is needed: restore the snapshot into the tensors that it was taken from.",
        )
    return source.local
