"""How processes are arranged: copies of the model, shards of it, and parts of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError


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
