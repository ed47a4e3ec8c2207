"""Stored tensors put where they belong: into tensors that are whole, or the part of them that this process holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from loopwright.checkpoint.layout import Box, whole
from loopwright.checkpoint.pieces import Piece, is_dtensor, piece_of, region_of
from loopwright.checkpoint.stored import StoredTensor
from loopwright.checkpoint.tree import Tree
from loopwright.errors import CheckpointError

Source: TypeAlias = Tensor | StoredTensor | Piece


def restore_into(target: Tensor, source: Source) -> None:
    """Copy a tensor of a checkpoint or snapshot into one that is there, whole or spread over processes.

    Only what this process holds is read; no process waits for another.
    """
    if target.is_meta:
        raise CheckpointError("A tensor on the meta device has no memory to restore into: materialise it first.")
    _check_shape(target, source)
    local, box = region_of(target)
    with torch.no_grad():
        local.copy_(_read(source, box))


def place_like(source: Source, like: Tensor) -> Tensor:
    """The tensor spread over processes as another of its shape is; whole where that one is, or has another shape."""
    if not is_dtensor(like) or tuple(source.shape) != tuple(like.shape):
        values = _read(source, whole(tuple(source.shape)))
        return values if isinstance(source, StoredTensor) else values.clone()
    from torch.distributed.tensor import DTensor

    local, box = region_of(like)
    values = _read(source, box).to(local.device, copy=not isinstance(source, StoredTensor))
    return DTensor.from_local(
        values, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def load_stored(tree: Tree) -> Tree:
    """The tree with every stored tensor read whole; the rest of it is the same."""
    if isinstance(tree, StoredTensor):
        return tree.read()
    if isinstance(tree, Mapping):
        items = {key: load_stored(value) for key, value in tree.items()}
        if not isinstance(tree, OrderedDict):
            return type(tree)(items)  # type: ignore[call-arg]
        ordered = OrderedDict(items)
        if (metadata := getattr(tree, "_metadata", None)) is not None:
            ordered._metadata = metadata  # type: ignore[attr-defined]
        return ordered
    if isinstance(tree, list | tuple):
        return type(tree)(load_stored(value) for value in tree)
    return tree


def _read(source: Source, box: Box) -> Tensor:
    if isinstance(source, StoredTensor):
        return source.read_box(box.offsets, box.shape)
    if is_dtensor(source):
        source = piece_of(source)
    if not isinstance(source, Piece):
        return source.detach()[box.slices]
    if source.box != box:
        raise CheckpointError(
            f"A snapshot holds the part at {list(source.box.offsets)} of {list(source.box.shape)}, needed is "
            f"{list(box.offsets)} of {list(box.shape)}: restore it into the tensors it was taken of."
        )
    return source.local


def _check_shape(target: Tensor, source: Source) -> None:
    if tuple(target.shape) != tuple(source.shape):
        raise CheckpointError(
            f"A tensor of {list(source.shape)} cannot be restored into one of {list(target.shape)}: "
            "build the same model as the run that wrote it."
        )
