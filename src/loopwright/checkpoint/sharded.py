"""Several processes, one checkpoint: each writes its part to a shared place, the first commits when
all are there.

Beside `shard-{rank}.safetensors` every process leaves a record of it, last and in one step, so a
record that can be seen speaks for a part that is complete. The first process turns the records into
the table of shards.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from .._torch_compat import set_state_dict_metadata, state_dict_metadata
from ..errors import CheckpointError, ConfigurationError
from .atomic import FileRecord, write_bytes
from .layout import (
    SHARDS,
    Box,
    Json,
    Numbers,
    StoredShard,
    TensorLayout,
    layouts_bytes,
    list_of,
    numbers_of,
    parse_json,
    read_box,
    table_of,
    text_of,
    whole,
)
from .manifest import record_of
from .tensors import DTYPES, StoredTensor, split_tied, write_tensors
from .tree import Group, TensorShard, Tree, is_dtensor, region_of, shard_of

TOKEN = re.compile(r"[0-9]+-[0-9a-f]+")
LEAVING_SECONDS = 5.0
SHORTEST_PAUSE = 0.001
LONGEST_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class _Entry:
    """A shard as its process recorded it."""

    tensor: str
    dtype: str
    shape: Numbers
    name: str
    box: Box


@dataclass(frozen=True, slots=True)
class _Part:
    """What one process wrote; no file where it holds nothing of its own."""

    rank: int
    file: FileRecord | None
    entries: tuple[_Entry, ...]


def part_name(rank: int) -> str:
    """The file with the shards of one process."""
    return f"shard-{rank}.safetensors"


def check_token(group: Group, token: str) -> None:
    """Refuse to begin what the processes could not finish: without a common name they write to
    different places."""
    if group.world > 1 and not TOKEN.fullmatch(token):
        raise ConfigurationError(
            "no-writing-token",
            f"{group.world} processes cannot write a checkpoint together with token={token!r}: "
            "create a token with `new_token()` on rank 0, send it to the other ranks, and pass "
            "it on all of them.",
        )


def write_part(staging: Path, rank: int, shards: Mapping[str, TensorShard]) -> None:
    """Write this process's shards, then the record that says so; a failure is recorded too, for the
    first process."""
    try:
        own = {key: shard for key, shard in shards.items() if shard.is_written}
        tensors = {key: shard.local for key, shard in own.items()}
        _, tied = split_tied(tensors)
        entries = [
            _Entry(key, DTYPES[shard.local.dtype], shard.shape, tied.get(key, key), shard.box)
            for key, shard in own.items()
        ]
        file = write_tensors(staging / part_name(rank), tensors) if own else None
        _write_record(
            staging, rank, {"file": file and asdict(file), "entries": [asdict(e) for e in entries]}
        )
    except BaseException as error:
        with suppress(OSError):
            _write_record(staging, rank, {"error": f"{type(error).__name__}: {error}"})
        raise


def gather_parts(
    staging: Path, group: Group, shards: Mapping[str, TensorShard], stop: threading.Event
) -> dict[str, FileRecord]:
    """Wait until every process has written its part, and write the table of shards; the files that
    came of it."""
    parts = _wait_for_parts(staging, group, stop)
    files: dict[str, FileRecord] = {}
    found: dict[str, list[StoredShard]] = {key: [] for key in shards}
    for part in parts:
        if part.file is not None:
            files[part_name(part.rank)] = part.file
        for entry in part.entries:
            _check_entry(part.rank, entry, shards)
            found[entry.tensor].append(StoredShard(part_name(part.rank), entry.name, entry.box))
    layouts = {
        key: TensorLayout(DTYPES[p.local.dtype], p.shape, tuple(found[key]))
        for key, p in shards.items()
    }
    for key, layout in layouts.items():
        if problem := layout.find_problem():
            raise CheckpointError(
                "shards-incomplete",
                f"The parts that the processes wrote do not make up {key!r}: {problem}.",
            )
    for part in parts:
        os.unlink(staging / _record_name(part.rank))  # all they say is in the table now
    return files | {SHARDS: write_bytes(staging / SHARDS, layouts_bytes(layouts))}


def _wait_for_parts(staging: Path, group: Group, stop: threading.Event) -> list[_Part]:
    parts: dict[int, _Part] = {}
    deadline = time.monotonic() + group.patience
    end = f"in {group.patience:g} s"
    pause = SHORTEST_PAUSE
    is_leaving = False
    while True:
        missing = [rank for rank in range(group.world) if rank not in parts]
        for rank in missing:
            if (path := staging / _record_name(rank)).exists():
                parts[rank] = _read_record(path, rank)
                _check_size(staging, parts[rank])
        missing = [rank for rank in missing if rank not in parts]
        if not missing:
            return [parts[rank] for rank in range(group.world)]
        if is_abandoned := stop.wait(pause):
            end = "before the save was abandoned"
        elif not is_leaving and not threading.main_thread().is_alive():
            # The program is over. The others' is too, and they had no more to write than this one.
            is_leaving = True
            end = "before the program ended"
            deadline = min(deadline, time.monotonic() + LEAVING_SECONDS)
        if is_abandoned or time.monotonic() > deadline:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise CheckpointError(
                "rank-wrote-nothing",
                f"The checkpoint is not complete: {ranks} of {group.world} did not write a part "
                f"{end}. Find out what happened to that process; earlier checkpoints are "
                "unchanged.",
            )
        pause = min(2 * pause, LONGEST_PAUSE)


def _check_size(staging: Path, part: _Part) -> None:
    if part.file is None:
        return
    name = part_name(part.rank)
    size = (staging / name).stat().st_size
    if size != part.file.size:
        raise CheckpointError(
            "shard-size",
            f"{name} has {size} bytes, rank {part.rank} wrote {part.file.size}: check the storage.",
        )


def _check_entry(rank: int, entry: _Entry, shards: Mapping[str, TensorShard]) -> None:
    own = shards.get(entry.tensor)
    if own is None or (entry.dtype, entry.shape) != (DTYPES[own.local.dtype], own.shape):
        stated = (
            "nothing of that name"
            if own is None
            else f"{DTYPES[own.local.dtype]} {list(own.shape)}"
        )
        raise CheckpointError(
            "ranks-save-differently",
            f"Rank {rank} saves {entry.tensor!r} as part of {entry.dtype} {list(entry.shape)}, "
            f"rank 0 has {stated}: all processes must save the same state at the same update.",
        )


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


def _read_record(path: Path, rank: int) -> _Part:
    try:
        content = table_of(parse_json(path.read_bytes(), str(path)))
        if "error" in content:
            raise CheckpointError(
                "rank-could-not-write",
                f"Rank {rank} could not write its part of the checkpoint: {content['error']}",
            )
        entries = tuple(_entry(table_of(entry)) for entry in list_of(content["entries"]))
        file = None if content["file"] is None else record_of(content["file"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            "malformed-shards", f"{path} is malformed ({error!r}): check the storage."
        ) from None
    return _Part(rank, file, entries)


def _entry(entry: Mapping[str, Json]) -> _Entry:
    return _Entry(
        text_of(entry["tensor"]),
        text_of(entry["dtype"]),
        numbers_of(entry["shape"]),
        text_of(entry["name"]),
        read_box(table_of(entry["box"])),
    )


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
    if isinstance(tree, StoredTensor):
        return tree.read()
    if isinstance(tree, Mapping):
        items = {key: load_stored(value) for key, value in tree.items()}
        if not isinstance(tree, OrderedDict):
            return type(tree)(items)  # type: ignore[call-arg]
        ordered = OrderedDict(items)
        if (metadata := state_dict_metadata(tree)) is not None:
            set_state_dict_metadata(ordered, metadata)
        return ordered
    if isinstance(tree, list | tuple):
        return type(tree)(load_stored(value) for value in tree)
    return tree


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
