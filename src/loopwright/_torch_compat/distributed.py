"""Private names of torch's process groups, device meshes and FSDP2; see the package for the
rules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Processes


def default_store() -> Any:
    """The key-value store of the default process group. Since 1.10."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def start_fake_group(world: int) -> None:
    """Initialise `torch.distributed` as rank 0 of pretended ranks; collectives return at once.
    Since 2.0."""
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  (makes the backend known)

    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in torch's type hints
    dist.init_process_group("fake", rank=0, world_size=world, store=store)


def group_named(name: str) -> Any:
    """The process group that functional collectives call by a name. Since 2.1."""
    from torch.distributed import distributed_c10d

    torchs: Any = distributed_c10d  # which has another type for names
    return torchs._resolve_process_group(name)


@contextmanager
def dispatching(see: Callable[[Any, Any, Any, Any], Any]) -> Iterator[None]:
    """Meanwhile, call `see(operator, types, args, kwargs)` in place of every operator of torch.
    Since 1.13."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return see(func, types, args, kwargs or {})

    with Mode():  # type: ignore[no-untyped-call]
        yield


def storage_key(tensor: Tensor) -> int:
    """What the storage of a tensor is told from others by, also on the meta device. Since 2.0."""
    return int(tensor.untyped_storage()._cdata)


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


def local_shape_at(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Any, ...],
) -> tuple[int, ...]:
    """The shape of the part of a tensor that the rank at a coordinate of the mesh holds. Since
    2.6."""
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    local, _ = _compute_local_shape_and_global_offset(
        shape, mesh_shape, list(coordinate), placements, True
    )
    return tuple(map(int, local))


def clear_mesh_caches() -> None:
    """Empty the caches of sharding decisions, which take a mesh of the same sizes for the same
    mesh. Since 2.6."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import _redistribute, debug

        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        _redistribute._gen_transform_infos.cache_clear()


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
