"""Tensors on a device mesh: sharded tensors (DTensor), their local parts, and the mesh that a user
asks for.

`torch.distributed.tensor` is never imported here before something else did: until then there can be
no DTensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._torch_compat.distributed import dtensor_type, local_shape_and_offset
from ..errors import ConfigurationError, check_number

T = TypeVar("T", bound=Tensor)


def mesh_of(tensor: Tensor) -> Any:
    """The device mesh of a DTensor; None for a plain tensor."""
    kind = dtensor_type()
    return tensor.device_mesh if kind is not None and isinstance(tensor, kind) else None


def group_by_mesh(tensors: Iterable[T]) -> list[list[T]]:
    """Groups of tensors that one operation can take together: plain ones, and those of each device
    mesh."""
    groups: dict[Any, list[T]] = {}
    for tensor in tensors:
        groups.setdefault(mesh_of(tensor), []).append(tensor)
    return list(groups.values())


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor; of a DTensor by a collective that all ranks of its mesh have to call."""
    gather: Any = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or this rank's part of a DTensor."""
    to_local: Any = getattr(tensor, "to_local", None)
    return to_local().detach() if callable(to_local) else tensor.detach()


@torch.no_grad()
def copy_into(target: Tensor, full: Tensor) -> None:
    """Copy a full tensor into a plain tensor, or this rank's part of it into a DTensor, without
    communication."""
    mesh: Any = mesh_of(target)
    if mesh is not None:
        shape, offsets = local_shape_and_offset(target.shape, mesh, target.placements)  # type: ignore[attr-defined]
        for dim, (start, size) in enumerate(zip(offsets, shape, strict=True)):
            full = full.narrow(dim, start, size)
    local_tensor(target).copy_(full)


def clip_grad_norm(params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradients by their total norm over all shards, and return that."""
    groups = group_by_mesh(p for p in params if p.grad is not None)
    if len(groups) <= 1:
        return full_tensor(nn.utils.clip_grad_norm_(params, max_norm))
    norms = [
        full_tensor(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None]))
        for group in groups
    ]
    total = nn.utils.get_total_norm(norms)
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh of `replicate` x `shard` x `tensor` processes.

    Replicas and shards each work on samples of their own; the ranks of one tensor-parallel group
    work on the same ones.

    Args:
        replicate: The number of copies of the model; gradients are averaged between them.
        shard: The number of shards of each copy (FSDP2).
        tensor: The number of ranks that share a layer (tensor parallelism); needs a `plan`.
        plan: The layers to be shared and how, as torch's `parallelize_module` takes it: names of
            submodules to `ColwiseParallel()`, `RowwiseParallel()` and so on.

    Example:
        >>> from loopwright import Mesh
        >>> mesh = Mesh(replicate=2, shard=4)
        >>> mesh.size, mesh.data_size
        (8, 8)
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    plan: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("replicate", "shard", "tensor"):
            check_number(f"Mesh({name}", getattr(self, name), least=1, of="processes")
        if bool(self.plan) != (self.tensor > 1):
            raise ConfigurationError(
                "mesh-plan",
                f"Mesh(tensor={self.tensor}) and its plan, which says which layers are split, go "
                "together: Mesh(tensor=2, plan={'up': ColwiseParallel(), 'down': "
                "RowwiseParallel()}). Give both, or none of them.",
            )

    @property
    def size(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """The number of parts that a batch is divided into."""
        return self.replicate * self.shard

    @property
    def is_sharded(self) -> bool:
        return self.shard > 1 or self.tensor > 1

    def check(self, world: int) -> None:
        """Refuse a number of processes that the mesh is not for."""
        if self.size != world:
            raise ConfigurationError(
                "mesh-size",
                f"Mesh(replicate={self.replicate}, shard={self.shard}, tensor={self.tensor}) is "
                f"for {self.size} processes, but there are {world}: start {self.size}, or change "
                "the mesh.",
            )
