"""What a state tree may hold: nested containers of tensors, arrays and plain values, and nothing
else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from .._torch_compat.distributed import dtensor_type, local_shape_and_offset, root_mesh
from ..errors import CheckpointError, ConfigurationError
from .layout import Box, Numbers, whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


Tree: TypeAlias = (
    Any  # nested dict, list, tuple; what it admits is decided by the encoder, not by types
)

ATOMS = frozenset({type(None), bool, int, float, str, bytes, complex})

TensorKey: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


def tensor_key(tensor: Tensor) -> TensorKey | None:
    """What two tensors have in common when they are one (tied weights); None where nothing is
    shared."""
    if tensor.numel() == 0:
        return None
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def plain_tensor(tensor: Tensor, path: str) -> Tensor:
    """The tensor without its graph, after refusing a tensor that is not one dense block of
    memory."""
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise refusal(path, tensor, "run one batch through the lazy module before saving")
    if hasattr(type(tensor), "__tensor_flatten__"):
        raise refusal(
            path, tensor, "gather it to a plain tensor first (`full_tensor()` for a DTensor)"
        )
    if tensor.layout is not torch.strided:
        raise refusal(path, tensor, "return `tensor.to_dense()`", f"a {tensor.layout} tensor")
    if tensor.is_meta:
        raise refusal(path, tensor, "materialise it first", "a tensor on the meta device")
    if tensor.is_quantized:
        raise refusal(
            path, tensor, "return `tensor.int_repr()` with its scale", "a quantized tensor"
        )
    return tensor.detach()


def refusal(path: str, value: object, remedy: str, what: str | None = None) -> CheckpointError:
    """The error for a value that cannot be saved, naming where it is and what to return instead."""
    kind = what or f"an object of type {type(value).__module__}.{type(value).__qualname__}"
    return CheckpointError(
        "cannot-be-saved",
        f"The state at {path or 'the top'!r} is {kind}, which cannot be saved: {remedy}.",
    )


def escape(component: str) -> str:
    """One component of a path, so that joining with "/" is never ambiguous and always valid
    UTF-8."""
    if component.isascii() and "%" not in component and "/" not in component:
        return component
    text = component.encode("utf-8", "replace").decode()
    return text.replace("%", "%25").replace("/", "%2F")


def unescape(component: str) -> str:
    """The inverse of `escape`."""
    return component.replace("%2F", "/").replace("%25", "%")


def join_path(path: str, key: object) -> str:
    """The path of an entry below a path."""
    return f"{path}/{escape(str(key))}" if path else escape(str(key))


PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Group:
    """One of the processes that write a checkpoint together.

    Args:
        rank: The number of this process, from 0.
        world: The number of processes.
        patience: How many seconds rank 0 waits for the parts of the others.

    Example:
        >>> from loopwright.checkpoint import Group
        >>> Group(rank=1, world=2).is_main
        False
    """

    rank: int = 0
    world: int = 1
    patience: float = PATIENCE_SECONDS

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigurationError(
                "rank-outside-world",
                f"Group(rank={self.rank}, world={self.world}): the rank is below the world.",
            )

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
        return self.is_primary and self.box.num_values > 0

    def stored_as(self, stored: Tensor) -> TensorShard:
        """The same shard in the form its values are stored in, which may have dimensions more
        (complex numbers)."""
        extra = tuple(stored.shape[self.local.dim() :])
        box = Box(self.box.offsets + (0,) * len(extra), self.box.shape + extra)
        return replace(self, local=stored, box=box, shape=self.shape + extra)


Piece = TensorShard  # its name in earlier versions


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
