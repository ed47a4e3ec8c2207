"""Private names of torch's process groups, device meshes and FSDP2; see the package for the
rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Processes


def default_store() -> Any:
    """The key-value store of the default process group. Since 1.10."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def checkpoint_activations(module: nn.Module) -> None:
    """Let a module recompute its activations in the backward pass; it stays the object that it is.
    Since 2.0."""
    from torch.distributed._composable.checkpoint_activation import checkpoint

    checkpoint(module)


# Tensors on a device mesh


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh that another one is a part of; the mesh itself where it is none. Since 2.10 or
    2.11."""
    return mesh._get_root_mesh()


def local_shape_and_offset(shape: Any, mesh: DeviceMesh, placements: Any) -> tuple[Any, Any]:
    """The shape of this rank's part of a tensor, and where it begins. Since 2.0."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(shape, mesh, placements)


# FSDP2: while a sharded module computes, full parameters take the place of the shards that an
# optimizer holds


def sharded_parameters(module: Any) -> Iterator[Any]:
    """What FSDP2 keeps for each parameter of a module that it shards; `sharded_param` is the
    optimizer's. Since 2.4."""
    state = module._get_fsdp_state()
    # newer ones have several
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    for group in groups:
        if group is not None:
            yield from group.fsdp_params


def full_parameter(held: Any) -> Tensor | None:
    """The full parameter that autograd knows; None before the first forward pass. Since 2.4."""
    return getattr(held, "_unsharded_param", None)


def dtensor_type() -> type[Any] | None:
    """The class DTensor; None where nothing has imported it, so that there is none.

    Since torch 2.5: `torch.distributed.tensor`.
    """
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
