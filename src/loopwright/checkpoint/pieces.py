"""Tensors that are spread over several processes: whose part is which box, and who writes it.

`torch.distributed.tensor` is never imported here before something else did: until then there can be no DTensor.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .._torch_compat import local_shape_and_offset, root_mesh
from ..errors import ConfigurationError
from .layout import Box, Numbers, whole
from .tree import refusal

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Group:
    """One process of those that write a checkpoint together, and how long the first waits for the others' parts."""

    rank: int = 0
    world: int = 1
    patience: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigurationError(f"Group(rank={self.rank}, world={self.world}): the rank is below the world.")

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes what all have in common, and commits."""
        return self.rank == 0


SINGLE = Group()


@dataclass(frozen=True, slots=True)
class Piece:
    """This process's part of a tensor that is spread over several.

    Of those that hold the same part, the primary one writes it.
    """

    local: Tensor
    box: Box
    shape: Numbers
    is_primary: bool

    @property
    def is_written(self) -> bool:
        return self.is_primary and self.box.num_values > 0

    def stored_as(self, stored: Tensor) -> Piece:
        """The same piece in the form its values are stored in, which may have dimensions more (complex numbers)."""
        extra = tuple(stored.shape[self.local.dim() :])
        box = Box(self.box.offsets + (0,) * len(extra), self.box.shape + extra)
        return replace(self, local=stored, box=box, shape=self.shape + extra)


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a tensor that is spread over processes."""
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and isinstance(value, kind)


def piece_of(tensor: DTensor, path: str = "") -> Piece:
    """This process's part of a tensor, without a copy."""
    mesh, placements = tensor.device_mesh, tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise refusal(path, tensor, "reduce it first (`redistribute` to Shard or Replicate)", "an unreduced DTensor")
    with torch.no_grad():
        local = tensor.to_local()
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # a mesh that this process is no part of
        shape = tuple(tensor.shape)
        return Piece(local, Box((0,) * len(shape), (0,) * len(shape)), shape, is_primary=False)
    is_copy = any(at and placement.is_replicate() for at, placement in zip(coordinate, placements, strict=True))
    return Piece(local, box_of(tensor), tuple(tensor.shape), is_primary=not is_copy and _is_first(mesh))


_first: WeakKeyDictionary[DeviceMesh, bool] = WeakKeyDictionary()


def _is_first(mesh: DeviceMesh) -> bool:
    """Whether this is the first of the alike parts of a larger mesh.

    What is spread over one dimension of two is there once for every place along the other: with tensor parallelism,
    the layers that are not part of it.
    """
    if (is_first := _first.get(mesh)) is None:
        root = root_mesh(mesh)
        is_first = _first[mesh] = root is mesh or int(root.mesh.flatten()[0]) in mesh.mesh.flatten().tolist()
    return is_first


_boxes: dict[tuple[Any, ...], Box] = {}  # finding one out takes torch 0.1 ms, and a model has thousands


def box_of(tensor: DTensor) -> Box:
    """The region of a tensor that this process holds."""
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    key = (shape, tuple(mesh.shape), tuple(mesh.get_coordinate() or ()), tensor.placements)
    if (box := _boxes.get(key)) is None:
        local, offsets = local_shape_and_offset(tensor.shape, mesh, tensor.placements)
        box = _boxes[key] = Box(tuple(map(int, offsets)), tuple(map(int, local)))
    return box


def region_of(tensor: Tensor) -> tuple[Tensor, Box]:
    """The memory that a tensor has in this process, and the box it is of the whole: all of it for a plain tensor."""
    if not is_dtensor(tensor):
        return tensor.detach(), whole(tuple(tensor.shape))
    piece = piece_of(tensor)
    return piece.local, piece.box
