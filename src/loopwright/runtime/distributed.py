"""The runtime of one rank of several: replicas of the model (DDP), shards of it (FSDP2), or a mesh
of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .._torch_compat import foreach_div_
from ..data.sharding import Shard
from ..data.workers import workers_outlive_signals
from ..errors import ConfigurationError, check_number
from .base import Runtime, is_meta, move_to
from .batch_norm import Part, convert, own_buffers
from .consensus import HostConsensus, RequestConsensus, Stamps
from .ddp import Averaging
from .dtensor import Mesh, full_tensor, group_by_mesh, local_tensor
from .environment import Launch
from .fsdp import (
    ShardedModels,
    broadcast_module,
    broadcast_tensors,
    disable_unsupported_steps,
    parallelize_layers,
    shard_module,
)
from .process_group import RankGroup
from .reduce_scatter import HostReduceScatter, Message
from .watchdog import Watchdog, watched


class DistributedRuntime(Runtime):
    """One rank of several processes that torchrun, SLURM or `loopwright.launch` started.

    Args:
        strategy: "ddp" (every rank has the full model), "fsdp" (every rank has a shard of it), or a
            `Mesh`.
        device: "cpu" or "cuda"; by default the GPU of this process's local rank, or the CPU.
        precision: "fp32", or autocast in "bf16" or "fp16" ("fp16" only with "ddp").
        param_dtype: The dtype that FSDP2 gathers parameters and computes in.
        reduce_dtype: The dtype that FSDP2 reduces gradients in.
        cpu_offload: Keep the shards in the host's memory (FSDP2).
        reshard_after_forward: Whether a block's full parameters are freed after its forward pass
            and gathered again in the backward pass (FSDP2); a number of ranks to keep them among
            instead. By default as torch does.
        find_unused_parameters: Let the ranks of a sharded model use different parameters.
        sync_batch_norm: Compute batch norms over the batch of all ranks.
        activation_checkpointing: Recompute the activations of repeated blocks in the backward pass.
        compile: Apply `torch.compile` to the "model" or to its repeated "blocks".
        timeout: The seconds that a collective waits for the slowest rank.
        bucket_mb: The size in MiB of the buckets in which gradients are averaged while the backward
            pass computes the rest ("ddp"); the first one has 1 MiB at most.

    Example:
        >>> from functools import partial
        >>> from loopwright import DistributedRuntime
        >>> runtime = partial(DistributedRuntime, "fsdp", cpu_offload=True)  # called on each rank: runtime=runtime()
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
        reshard_after_forward: bool | int | None = None,
        find_unused_parameters: bool = False,
        sync_batch_norm: bool = False,
        activation_checkpointing: bool = False,
        compile: str | None = None,  # noqa: A002  (the name that users know)
        timeout: float = 600.0,
        bucket_mb: float = 25.0,
    ) -> None:
        sharding = Sharding(
            param_dtype=param_dtype,
            reduce_dtype=reduce_dtype,
            cpu_offload=cpu_offload,
            reshard_after_forward=reshard_after_forward,
            find_unused_parameters=find_unused_parameters,
        )
        check_settings(strategy, precision, sharding.given())
        check_number("bucket_mb", bucket_mb, above=0, is_whole=False, of="MiB")
        self.group = RankGroup.join(device or _own_device(), timeout=timeout)
        super().__init__(
            self.group.device,
            precision,
            activation_checkpointing=activation_checkpointing,
            compile=compile,
        )
        self.rank = self.group.rank
        self.world = self.group.world
        self.mesh = self._resolve(strategy)
        self.sharding = sharding
        self._device_mesh: Any = None
        self.num_shares = self.mesh.data_size
        self.forwards_together = self.mesh.is_sharded
        self.sample_rank = self.rank // self.mesh.tensor
        self.shard = Shard(self.sample_rank, self.num_shares)
        # of the ranks that work on different samples; None for all, without tensor parallelism
        self.data_group = None if self.mesh.tensor == 1 else self._new_data_group()
        self.part = Part(self.data_group)
        self._sync_batch_norm = sync_batch_norm
        self._shards = ShardedModels(self.gather_objects, finds_unused=find_unused_parameters)
        self._buffers: WeakKeyDictionary[nn.Module, list[Tensor]] = WeakKeyDictionary()
        self._has_buffers = False
        self._heartbeat: Watchdog | None = None
        self.averaging = Averaging(
            self.data_group,
            self.mesh.data_size,
            max_bytes=int(bucket_mb * (1 << 20)),
            gather=self.gather_objects,
            new_group=self._new_data_group,
        )
        self.averages_gradients = self.mesh.shard == 1 and self.mesh.data_size > 1
        # so that gradient buckets are summed over all ranks
        self._is_replicated = self.mesh.replicate == self.world
        carries = self.is_host and self.mesh.shard == self.world
        self._reduce_scatter = HostReduceScatter() if carries else None
        # by optimizer, as its list of parameters, which is kept: the id of one that is gone may be
        # that of the next
        self._in_flight: dict[int, tuple[Sequence[nn.Parameter], Message]] = {}
        self._stamps = Stamps()
        consensus = HostConsensus if self.is_host else RequestConsensus
        self._consensus = consensus(self.group.new_host_group())

    def _resolve(self, strategy: str | Mesh) -> Mesh:
        if strategy == "ddp":
            return Mesh(replicate=self.world)
        if strategy == "fsdp":
            return Mesh(shard=self.world)
        assert isinstance(strategy, Mesh)  # checked before
        strategy.check(self.world)
        return strategy

    def _new_data_group(self) -> dist.ProcessGroup:
        """Another group of the ranks that work on different samples; every process has to call
        this."""
        own: Any = None
        for offset in range(self.mesh.tensor):
            ranks = list(range(offset, self.world, self.mesh.tensor))
            group = dist.new_group(ranks, timeout=timedelta(seconds=self.group.timeout))
            if self.rank in ranks:
                own = group
        return cast(dist.ProcessGroup, own)

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
        if module in self._buffers:
            return  # by an earlier trainer
        if not is_meta(module):
            module.to(self.device)
            broadcast_module(module)
        elif not any(param.requires_grad for param in module.parameters()):
            self._materialise(module)  # it will not be wrapped

    def wrap(self, module: nn.Module) -> dict[int, nn.Parameter]:
        """Shard the model as the mesh says; returns new parameters by the ids of the old ones."""
        if module in self._buffers:
            return {}
        replaced: dict[int, nn.Parameter] = {}
        was_meta = is_meta(module)
        if self._sync_batch_norm:
            convert(module, self.part)
        if was_meta and not self.mesh.is_sharded:
            self._materialise(module)
        if self.mesh.tensor > 1:
            before = dict(module.named_parameters())
            parallelize_layers(module, self.mesh, self.device_mesh)
            after = dict(module.named_parameters())
            replaced = {id(param): after[name] for name, param in before.items()}
        super().wrap(module)
        if self.mesh.shard > 1:
            names = ("replicate", "shard") if self.mesh.replicate > 1 else ("shard",)
            given = self.sharding.arguments(self.is_host)
            again = shard_module(module, self.device_mesh[names], **given)
            earlier = replaced
            replaced = {old: again[id(new)] for old, new in earlier.items()} if earlier else again
            self._shards.add(module, self._reduce_scatter)
        if was_meta and self.mesh.is_sharded:
            self._materialise(module)
        self._stamps.add(module)
        self._buffers[module] = own_buffers(module)
        self._has_buffers |= bool(self._buffers[module])
        return replaced

    def _materialise(self, module: nn.Module) -> None:
        """Initialise a model on the meta device from the random numbers of rank 0, on all ranks."""
        torch.set_rng_state(self.broadcast_object(torch.get_rng_state()))
        super()._materialise(module)

    def adapt_optimizer(self, optimizer: Optimizer) -> None:
        if self.mesh.is_sharded:
            disable_unsupported_steps(optimizer)

    @contextmanager
    def supervised(self) -> Iterator[None]:
        self._reset()  # an earlier call may have ended with an exception
        try:
            with watched(self.group) as self._heartbeat, workers_outlive_signals():
                yield
        finally:
            self.averaging.clear()  # it has hooks on the parameters
        self._heartbeat = None
        self._reset()

    def _reset(self) -> None:
        """Drop what refers to one `train` call: parameters, and messages in flight."""
        self.averaging.clear()
        self._in_flight.clear()
        self._consensus.finish()

    def start_step(self, is_last: bool, size: int) -> None:
        """Gradients are reduced in the last step of a window only; a rank without samples is in no
        statistics."""
        self.part.counts = size > 0
        if self.mesh.shard > 1:
            self._shards.start_step(is_last)
            if self._reduce_scatter is not None:
                self._reduce_scatter.nonfinite.zero_()  # of plain backward passes of the last step

    def reshard(self) -> None:
        self._shards.reshard()

    def prepare_backward(
        self,
        loss: Tensor,
        params: Sequence[nn.Parameter],
        inputs: Sequence[Tensor] | None,
        *,
        is_last: bool,
        flag: Tensor | float | None = None,
        overlaps: bool = True,
    ) -> Sequence[Tensor] | None:
        """Prepare a backward pass to some parameters; returns `inputs` as the tensors that autograd
        knows.

        `flag` is that of `sync_gradients`: in a window's last backward pass it may be all-reduced
        meanwhile. `overlaps` says that `sync_gradients` follows for the same parameters, so that
        averaging may begin in that pass.
        """
        if self._shards.is_used:
            inputs = self._shards.prepare(loss, params, inputs, is_last=is_last)
        if not is_last:
            if self.averages_gradients:
                self.averaging.expect(params)
            return inputs
        if not self._is_replicated and (message := self._message(flag, params)) is not None:
            self._in_flight[id(params)] = params, message
            if self._reduce_scatter is None:
                self._send(message)  # all-reduced during the backward pass
            else:
                self._reduce_scatter.pending = message
                self._reduce_scatter.nonfinite.zero_()
        if overlaps and self.averages_gradients:
            self.averaging.start(params)
        return inputs

    def finish_backward(self, *, is_complete: bool) -> None:
        """End a backward pass; not `is_complete` after an exception."""
        if self._reduce_scatter is not None:
            self._reduce_scatter.pending = None
        if self.averages_gradients:
            self.averaging.finish(is_complete=is_complete)

    def _message(
        self, flag: Tensor | float | None, params: Sequence[nn.Parameter]
    ) -> Message | None:
        stamp = self._stamps.of(params)
        numbers = self._consensus.message(flag, stamp)
        return None if numbers is None else Message(numbers, stamp)

    def _send(self, message: Message) -> None:
        """Start to sum a message over all ranks, in a collective of its own."""
        message.summed = message.numbers.clone()
        # called directly: the checks around `dist.all_reduce` cost more than it does
        world: Any = dist.group.WORLD
        message.work = world.allreduce([message.summed], self.averaging.in_background)

    def sync_gradients(
        self, params: Sequence[nn.Parameter], flag: Tensor | float | None = None
    ) -> Tensor | float | None:
        """Average the gradients that FSDP2 has not averaged yet; 1 if any rank's flag is set, None
        without one."""
        _, message = self._in_flight.pop(id(params), (params, None))
        if message is None or message.summed is None:
            message = self._message(flag, params)
        if self.averages_gradients:
            numbers = message.numbers if message is not None and self._is_replicated else None
            averaged = self.averaging.average(params, numbers)
            if message is not None and averaged is not None:
                message.summed = averaged
        if message is None:
            return None
        if message.summed is None:
            self._send(message)
        if message.work is not None:
            message.work.wait()
        assert message.summed is not None
        is_set = self._consensus.receive(message.summed, message.stamp)
        return None if flag is None else is_set

    def finish_update(self, modules: Iterable[nn.Module]) -> None:
        """Broadcast buffers, such as the statistics of batch norm, from rank 0, as torch's DDP
        does."""
        if not self._has_buffers:
            return
        buffers = [buffer for module in modules for buffer in self._buffers.get(module, ())]
        if buffers:
            broadcast_tensors(buffers)

    def local_parts(self, grads: Sequence[Tensor]) -> list[Tensor]:
        return list(grads) if self._is_replicated else [local_tensor(grad) for grad in grads]

    def share_flag(self, flag: Tensor) -> Tensor:
        """Averaged gradients are the same on all ranks; those of shards are not, unless all ranks
        saw them reduced."""
        if self._reduce_scatter is not None:
            return self._reduce_scatter.nonfinite.clone()
        if not self._is_replicated:
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag

    def divide(self, grads: Sequence[Tensor], divisor: Tensor) -> None:
        """Divide gradients, which may be sharded."""
        for group in group_by_mesh(grads):
            foreach_div_(group, divisor)

    def sum_count(self, count: Any) -> Any:
        """The sum of a number of items over the ranks that work on different samples."""
        dtype = torch.float64 if self.is_host else torch.float32
        total = torch.as_tensor(count, dtype=dtype, device=self.device).detach().clone()
        dist.all_reduce(total, group=self.data_group)
        return total

    def sum_table(self, table: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Sums and counts by name, added up over the ranks that work on different samples, in
        float64 in the order of ranks; a name may be missing."""
        total: dict[str, tuple[float, float]] = {}
        for own in self.gather_each(dict(table)):
            for name, (value, count) in own.items():
                before = total.get(name, (0.0, 0.0))
                total[name] = (before[0] + value, before[1] + count)
        return total

    def gather(self, tensor: Tensor, padding_value: float | None = None) -> Tensor:
        rows = super().gather(tensor)
        is_copy = self.rank % self.mesh.tensor > 0  # another rank has the same samples
        return self.group.gather(rows[:0] if is_copy else rows, padding_value)

    def gather_each(self, value: Any) -> list[Any]:
        return self.gather_objects(value)[:: self.mesh.tensor]

    def gather_objects(self, value: Any) -> list[Any]:
        return self.group.gather_objects(value)

    def gather_parts(self, parts: Sequence[Any]) -> list[Any]:
        """The parts of each batch of all ranks that had samples of it, in order."""
        own = [part and (full_tensor(part[0]),) for part in parts]
        steps = zip(*self.gather_each(move_to(own, torch.device("cpu"))), strict=True)
        return [self.move(part[0]) for step in steps for part in step if part]

    def broadcast_object(self, value: Any) -> Any:
        return self.group.broadcast_object(value)

    def barrier(self, place: str) -> None:
        self.group.barrier(place)

    def exchange(self, requests: Sequence[int]) -> tuple[int, ...]:
        """Send this update's requests; return the maximum over all ranks of the previous
        update's."""
        if self._heartbeat is not None:
            self._heartbeat.beat()
        # of backward passes over other parameters than those that were updated
        self._in_flight.clear()
        return self._consensus.exchange(tuple(requests))

    def finish_exchange(self) -> None:
        self._consensus.finish()


def _own_device() -> torch.device:
    """The GPU of this process's local rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    launch = Launch.from_environment()
    return torch.device("cuda", launch.local_rank if launch is not None else 0)


STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True, slots=True)
class Sharding:
    """The settings of a model that FSDP2 shards."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    cpu_offload: bool = False
    reshard_after_forward: bool | int | None = None
    find_unused_parameters: bool = False

    def given(self) -> list[str]:
        """The names of the settings that were given."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def arguments(self, is_host: bool) -> dict[str, Any]:
        """The settings as `shard_module` takes them."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        given: dict[str, Any] = {}
        if self.reshard_after_forward is not None:
            given["reshard_after_forward"] = self.reshard_after_forward
        if self.param_dtype is not None or self.reduce_dtype is not None:
            given["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype
            )
        if self.cpu_offload:
            given["offload_policy"] = CPUOffloadPolicy(pin_memory=not is_host)
        return given


def check_settings(strategy: str | Mesh, precision: str, sharding: Sequence[str]) -> None:
    """Refuse settings that contradict each other; `sharding` lists the given settings of sharded
    models."""
    if isinstance(strategy, Mesh):
        has_shards = strategy.shard > 1
        is_sharded = strategy.is_sharded
    elif strategy in STRATEGIES:
        has_shards = strategy == "fsdp"
        is_sharded = has_shards
    else:
        raise ConfigurationError(
            "unknown-runtime",
            f"runtime={strategy!r}: use one of {', '.join(STRATEGIES)}, or a Mesh.",
        )
    if is_sharded and precision == "fp16":
        raise ConfigurationError(
            "fp16-sharded",
            "precision='fp16' does not work with a sharded model: each process would scale the "
            "loss by its own part of the gradients. Use precision='bf16', or runtime='ddp'.",
        )
    if precision != "fp32" and "param_dtype" in sharding:
        raise ConfigurationError(
            "given-twice",
            f"precision={precision!r} and param_dtype= are two ways to compute in lower "
            "precision: leave one out.",
        )
    if sharding and not has_shards:
        raise ConfigurationError(
            "not-sharded",
            f"{', '.join(sharding)}: only for a sharded model. Use runtime='fsdp' or a Mesh with "
            "shard > 1, or leave it out.",
        )
