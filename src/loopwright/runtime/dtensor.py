"""Tensors in groups that one operation can take together: whole ones, and those spread over the same processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from ..errors import ConfigurationError

T = TypeVar("T", bound=Tensor)


def spread_of(tensor: Tensor) -> Any:
    """The processes that a tensor is spread over; None for a whole one."""
    module = sys.modules.get("torch.distributed.tensor")  # until somebody imports it, there can be no such tensor
    kind = getattr(module, "DTensor", None)
    return tensor.device_mesh if kind is not None and isinstance(tensor, kind) else None


def alike(tensors: Iterable[T]) -> list[list[T]]:
    """The tensors by what they are spread over, each group in its order."""
    groups: dict[Any, list[T]] = {}
    for tensor in tensors:
        groups.setdefault(spread_of(tensor), []).append(tensor)
    return list(groups.values())


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of one that is spread over processes, each of which has to ask."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def clip_norm(params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradients by the norm of all of them together, and return that."""
    groups = alike(p for p in params if p.grad is not None)
    if len(groups) <= 1:
        return whole(nn.utils.clip_grad_norm_(params, max_norm))
    norms = [whole(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups]
    total = nn.utils.get_total_norm(norms)
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


@dataclass(frozen=True, slots=True)
class Mesh:
    """`replicate` x `shard` x `tensor` processes.

    Copies (`replicate`) and shards (`shard`, FSDP2) each work on their own samples; processes that hold parts of the
    same layers (`tensor`) work on the same ones. `plan` says which layers are cut and how, as torch's
    `parallelize_module` takes it: names of submodules to `ColwiseParallel()`, `RowwiseParallel()` and so on.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    plan: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("replicate", "shard", "tensor"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigurationError(f"Mesh({name}={getattr(self, name)!r}): use a number of processes, 1 or more.")
        if self.tensor > 1 and not self.plan:
            raise ConfigurationError(
                f"Mesh(tensor={self.tensor}) needs a plan that says which layers are cut: "
                "Mesh(tensor=2, plan={'up': ColwiseParallel(), 'down': RowwiseParallel()})."
            )

        if self.plan and self.tensor == 1:
            raise ConfigurationError(
                "Mesh(plan=...): a plan= is given, but tensor=1, so that no layer would be cut. Say how many processes "
                "share a layer, as in Mesh(tensor=2, plan=...), or leave out the plan."
            )

    @property
    def size(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data_size(self) -> int:
        """How many parts a batch is divided into."""
        return self.replicate * self.shard

    @property
    def is_sharded(self) -> bool:
        return self.shard > 1 or self.tensor > 1

    def check(self, world: int) -> None:
        if self.size != world:
            raise ConfigurationError(
                f"Mesh(replicate={self.replicate}, shard={self.shard}, tensor={self.tensor}) is for {self.size} "
                f"processes, but there are {world}: start {self.size}, or change the mesh."
            )
