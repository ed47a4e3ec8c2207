"""A dry run of several processes: this process is rank 0 of a fake process group, whose collectives
return at once.

All that training on several processes builds and checks is built and checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import Any

from torch import Tensor

from .._torch_compat.distributed import clear_mesh_caches, local_shape_at, start_fake_group
from ..errors import ConfigurationError
from .dtensor import Mesh

current: DryRun | None = None


class DryRunDone(BaseException):
    """The end of a dry run. No `Exception`, so that no error handling of the program catches it."""


class DryRun:
    """The settings of a dry run.

    `strategy`, a name or the sizes of a mesh, replaces the program's, and `world` its number of
    processes; None leaves them. `watch` takes a trainer and returns the callbacks that replace its
    own; one of them ends the dry run.
    """

    def __init__(
        self,
        watch: Callable[[Any], Sequence[Any]],
        *,
        world: int | None = None,
        strategy: str | Mapping[str, int] | None = None,
    ) -> None:
        self.watch = watch
        self._asked_for = world
        self._strategy = strategy
        self.world = (
            world
            if world is not None
            else (prod(strategy.values()) if isinstance(strategy, Mapping) else 2)
        )
        if self.world < 2:
            raise ConfigurationError(
                "dry-run-of-one", f"{self.world} process: a dry run needs 2 or more processes."
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """The context of the dry run; afterwards the process is as before."""
        global current
        hook = sys.excepthook
        variables = dict(os.environ)
        current = self
        try:
            self._start()
            yield
        finally:
            current = None
            _stop()
            sys.excepthook = hook
            os.environ.clear()
            os.environ.update(variables)

    def strategy_for(self, given: Any, *, is_built: bool) -> Any:
        """The strategy of a trainer with `runtime=given`; the tensor-parallel plan is always the
        program's."""
        if self._strategy is None:
            return given
        if is_built:  # a Runtime, not a name or a Mesh
            raise ConfigurationError(
                "own-runtime",
                f"The program makes its own {type(given).__name__}, which --runtime and --mesh "
                "cannot replace: leave these options out, or pass the trainer a runtime name or "
                "a Mesh.",
            )
        if isinstance(self._strategy, str):
            return self._strategy
        return Mesh(**self._strategy, plan=given.plan if isinstance(given, Mesh) else None)

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], processes: int) -> list[Any]:
        """Replace `launch`: call the function in this process, as rank 0."""
        if self._asked_for is None and processes != self.world:
            _stop()
            self.world = processes
            self._start()
        return [fn(*args)]

    def _start(self) -> None:
        """Set the environment of rank 0, and start the fake process group."""
        import torch.distributed as dist

        from .process_group import RankGroup

        class FakeGroup(RankGroup):
            """A group whose other ranks have the values of this one."""

            def new_host_group(self) -> dist.ProcessGroup:
                group: dist.ProcessGroup = dist.new_group()
                return group

        os.environ |= {
            "RANK": "0",
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "CUDA_VISIBLE_DEVICES": "",  # the host has more memory, and nothing here is about speed
        }
        start_fake_group(self.world)
        FakeGroup.join("cpu")


@contextmanager
def fake_group(world: int) -> Iterator[None]:
    """A fake process group of which this process is rank 0, for a rehearsal without a trainer."""
    start_fake_group(world)
    try:
        yield
    finally:
        _stop()


def _stop() -> None:
    import torch.distributed as dist

    from .process_group import current_group

    if (group := current_group()) is not None:
        group.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    # or real processes, forked from this one, would all take themselves for rank 0
    clear_mesh_caches()


AXES = ("replicate", "shard", "tensor")


def coordinate_of(rank: int, mesh: Mesh) -> dict[str, int]:
    """The coordinate of a rank in the mesh: neighbours differ in `tensor`, then in `shard`, then in
    `replicate`."""
    return {
        "replicate": rank // (mesh.shard * mesh.tensor),
        "shard": rank // mesh.tensor % mesh.shard,
        "tensor": rank % mesh.tensor,
    }


def local_shape(tensor: Tensor, rank: int, mesh: Mesh) -> tuple[int, ...]:
    """The shape of a rank's part of a tensor: the full shape, unless it is a DTensor."""
    dtensor: Any = tensor
    if getattr(tensor, "placements", None) is None:
        return tuple(tensor.shape)
    place = coordinate_of(rank, mesh)
    own = tuple(place[name] for name in dtensor.device_mesh.mesh_dim_names)
    return _local_shape(
        tuple(tensor.shape), tuple(dtensor.device_mesh.shape), own, tuple(dtensor.placements)
    )


@lru_cache(maxsize=65536)
def _local_shape(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    coordinate: tuple[int, ...],
    placements: tuple[Any, ...],
) -> tuple[int, ...]:
    return local_shape_at(shape, mesh_shape, coordinate, placements)


def local_bytes(tensor: Tensor, rank: int, mesh: Mesh) -> int:
    """The bytes of a rank's part of a tensor."""
    return prod(local_shape(tensor, rank, mesh)) * tensor.element_size()


def placement_text(tensor: Tensor) -> str:
    """The placement of a tensor in words: "dim 0 over shard"; "whole" where every rank has the full
    tensor."""
    dtensor: Any = tensor
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return "whole"
    names = dtensor.device_mesh.mesh_dim_names
    cuts = [
        f"dim {placement.dim} over {name}"
        for name, placement, size in zip(names, placements, dtensor.device_mesh.shape, strict=True)
        if not placement.is_replicate() and size > 1
    ]
    return ", ".join(cuts) or "whole"
