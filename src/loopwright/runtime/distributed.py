"""Several processes that train one model: copies of it (DDP), shards of it (FSDP2), or a mesh of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.sharding import Shard
from ..errors import ConfigurationError
from .agreement import Agreement
from .environment import Launch
from .group import Group
from .guard import Guard, guarded
from .mesh import Mesh
from .single import Runtime
from .wrapping import average_gradients, check_values, cut_layers, is_meta, make_equal, materialise, shard_module

STRATEGIES = ("ddp", "fsdp")


class DistributedRuntime(Runtime):
    """One of several processes, started by torchrun, SLURM or `loopwright.launch`.

    `strategy` is "ddp" (every process has the whole model), "fsdp" (every process has a shard of it), or a `Mesh`.
    `param_dtype` and `reduce_dtype` are FSDP2's mixed precision policy, `cpu_offload` its offloading.
    """

    def __init__(
        self,
        strategy: str | Mesh = "ddp",
        *,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        cpu_offload: bool = False,
        activation_checkpointing: bool = False,
        compile: str | None = None,  # noqa: A002  (what everyone calls it)
        timeout: float | timedelta = 600.0,
    ) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self.group = Group.join(device or _own_device(), timeout=seconds)
        super().__init__(
            self.group.device,
            precision,
            activation_checkpointing=activation_checkpointing,
            compile=compile,
        )
        self.rank, self.world = self.group.rank, self.group.world
        self.mesh = self._resolve(strategy)
        self.policy = (param_dtype, reduce_dtype, cpu_offload)
        self._check_settings()
        self._device_mesh: Any = None
        data_rank = self.rank // self.mesh.tensor
        self.num_shares = self.mesh.data_size
        self.forwards_together = self.mesh.is_sharded
        self.shard = Shard(data_rank, self.num_shares)
        self.data_group = self._build_data_group()
        self._sharded: list[Any] = []
        self._watch: Guard | None = None
        self._agreement = Agreement(self.group.new_host_group())

    def _resolve(self, strategy: str | Mesh) -> Mesh:
        if strategy == "ddp":
            return Mesh(replicate=self.world)
        if strategy == "fsdp":
            return Mesh(shard=self.world)
        if not isinstance(strategy, Mesh):
            raise ConfigurationError(f"runtime={strategy!r}: use one of {', '.join(STRATEGIES)}, or a Mesh.")
        strategy.check(self.world)
        return strategy

    def _check_settings(self) -> None:
        param_dtype, reduce_dtype, cpu_offload = self.policy
        if self.mesh.is_sharded and self.precision == "fp16":
            raise ConfigurationError(
                "precision='fp16' does not go with a sharded model: each process would scale by what it sees of the "
                "gradients. Use precision='bf16', or runtime='ddp'."
            )
        if not self.mesh.is_sharded and (param_dtype or reduce_dtype or cpu_offload):
            raise ConfigurationError(
                "param_dtype, reduce_dtype and cpu_offload are settings of a sharded model: use runtime='fsdp' or a "
                "Mesh with shard > 1, or leave them out (precision='bf16' gives mixed precision with DDP)."
            )

    def _build_data_group(self) -> dist.ProcessGroup | None:
        """The processes that work on different samples; all of them, unless layers are cut."""
        if self.mesh.tensor == 1:
            return None
        own = None
        for offset in range(self.mesh.tensor):
            ranks = list(range(offset, self.world, self.mesh.tensor))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                own = group
        return own

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device_mesh(self) -> Any:
        if self._device_mesh is None:
            from torch.distributed.device_mesh import init_device_mesh

            shape = (self.mesh.replicate, self.mesh.shard, self.mesh.tensor)
            self._device_mesh = init_device_mesh(
                self.device.type, shape, mesh_dim_names=("replicate", "shard", "tensor")
            )
        return self._device_mesh

    def place(self, module: nn.Module) -> None:
        if not is_meta(module):
            module.to(self.device)
            make_equal(module, None)

    def wrap(self, module: nn.Module) -> dict[int, nn.Parameter]:
        """Cut and shard the model as the mesh says; the new parameters under the ids of those they replace."""
        replaced: dict[int, nn.Parameter] = {}
        was_meta = is_meta(module)
        if was_meta and not self.mesh.is_sharded:
            materialise(module, self.device)
            make_equal(module, None)
        if self.mesh.tensor > 1:
            before = dict(module.named_parameters())
            cut_layers(module, self.mesh, self.device_mesh)
            after = dict(module.named_parameters())
            replaced = {id(param): after[name] for name, param in before.items()}
        super().wrap(module)
        if self.mesh.shard > 1:
            again = shard_module(module, self._data_mesh(), **self._shard_settings())
            replaced = again if not replaced else {old: again[id(new)] for old, new in replaced.items()}
            self._sharded.append(module)
        if was_meta:
            if self.mesh.is_sharded:
                torch.manual_seed(0)
                materialise(module, self.device)
            check_values(module)
        return replaced

    def _data_mesh(self) -> Any:
        names = ("replicate", "shard") if self.mesh.replicate > 1 else ("shard",)
        return self.device_mesh[names]

    def _shard_settings(self) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        param_dtype, reduce_dtype, cpu_offload = self.policy
        settings: dict[str, Any] = {}
        if param_dtype or reduce_dtype:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        if cpu_offload:
            settings["offload_policy"] = CPUOffloadPolicy(pin_memory=not self.is_host)
        return settings

    @contextmanager
    def supervised(self) -> Iterator[None]:
        with guarded(self.group) as self._watch:
            yield
        self._watch = None

    def start_step(self, is_last: bool) -> None:
        """Shards are exchanged in the backward pass of the window's last step only."""
        for module in self._sharded:
            module.set_requires_gradient_sync(is_last)

    def settle(self) -> None:
        """A forward pass leaves whole parameters behind; without a backward pass nobody else cuts them again."""
        if not self._sharded:
            return
        from torch.distributed.fsdp import FSDPModule

        for module in self._sharded:
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()

    def sync_gradients(self, params: Iterable[nn.Parameter]) -> None:
        """Average the gradients that the model's own sharding does not."""
        if self.mesh.shard == 1 and self.mesh.data_size > 1:
            average_gradients(params, self.data_group, self.mesh.data_size)

    def any_flag(self, flag: Tensor) -> Tensor:
        """The largest of all processes' flags, on the device."""
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return flag

    def sum_count(self, count: Any) -> Any:
        """A number of items over all processes that work on different samples."""
        total = torch.as_tensor(count, dtype=torch.float64 if self.is_host else torch.float32, device=self.device)
        total = total.detach().clone()
        dist.all_reduce(total, group=self.data_group)
        return total

    def sum_table(self, table: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Sums and counts by name, added up over processes that work on different samples."""
        own = dict(table) if self.rank % self.mesh.tensor == 0 else {}
        return self.group.sum_table(own)

    def gather_objects(self, value: Any) -> list[Any]:
        return self.group.gather_objects(value)

    def broadcast_object(self, value: Any) -> Any:
        return self.group.broadcast_object(value)

    def barrier(self, place: str) -> None:
        self.group.barrier(place)

    def exchange(self, wishes: Sequence[int]) -> tuple[int, ...]:
        """Post this update's wishes; what anyone wished in the update before."""
        if self._watch is not None:
            self._watch.beat()
        return self._agreement.exchange(tuple(wishes))

    def finish_exchange(self) -> None:
        self._agreement.finish()


def _own_device() -> torch.device:
    """The accelerator with this process's number on its host, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    launch = Launch.from_environment()
    return torch.device("cuda", launch.local_rank if launch is not None else 0)
