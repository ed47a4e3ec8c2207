"""Who holds what of a tensor that is spread over processes, worked out for any of them."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from torch import Tensor

from .mesh import Mesh

AXES = ("replicate", "shard", "tensor")


def coordinate_of(rank: int, mesh: Mesh) -> dict[str, int]:
    """Where a process is in the mesh; neighbours share layers, then shards, then are copies."""
    return {
        "replicate": rank // (mesh.shard * mesh.tensor),
        "shard": rank // mesh.tensor % mesh.shard,
        "tensor": rank % mesh.tensor,
    }


def local_shape(tensor: Tensor, rank: int, mesh: Mesh) -> tuple[int, ...]:
    """The shape of what a process holds of a tensor; all of it, unless it is spread."""
    spread: Any = tensor
    if getattr(tensor, "placements", None) is None:
        return tuple(tensor.shape)
    place = coordinate_of(rank, mesh)
    own = tuple(place[name] for name in spread.device_mesh.mesh_dim_names)
    return _local_shape(tuple(tensor.shape), tuple(spread.device_mesh.shape), own, tuple(spread.placements))


@lru_cache(maxsize=65536)
def _local_shape(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    local, _ = _compute_local_shape_and_global_offset(shape, mesh_shape, list(coordinate), placements, True)
    return tuple(map(int, local))


def local_bytes(tensor: Tensor, rank: int, mesh: Mesh) -> int:
    return prod(local_shape(tensor, rank, mesh)) * tensor.element_size()


def placement_text(tensor: Tensor) -> str:
    """How a tensor is spread, in words: "dim 0 over shard"; "whole" where every process has all of it."""
    spread: Any = tensor
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return "whole"
    names = spread.device_mesh.mesh_dim_names
    cuts = [
        f"dim {placement.dim} over {name}"
        for name, placement, size in zip(names, placements, spread.device_mesh.shape, strict=True)
        if not placement.is_replicate() and size > 1
    ]
    return ", ".join(cuts) or "whole"
