"""The bytes that a rank holds, and every collective of an update, for a module and a strategy.

Nothing is trained or sent: the figures follow from the shapes of the parameters. Tests compare them
with what real processes hold and send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ConfigurationError
from ..runtime.batch_norm import own_buffers
from ..runtime.buckets import MESSAGE_DTYPES, MESSAGE_SIZE, fill_buckets
from ..runtime.consensus import NUM_REQUESTS
from ..runtime.ddp import BUCKET_BYTES
from ..runtime.dtensor import Mesh
from ..runtime.fsdp import blocks_of


@dataclass(frozen=True, slots=True)
class Collective:
    """One or several equal collectives, as one rank takes part in them.

    Args:
        kind: "all-reduce", "all-gather", "reduce-scatter" or "broadcast".
        payload: Bytes of the full tensor: what is reduced, what has been gathered, what is to be
            scattered.
        group: The number of ranks that take part.
        count: How many there are.
        what: What is sent, in a word.

    Example:
        >>> from loopwright.scaling import Collective
        >>> Collective("all-reduce", payload=1000, group=4).sent
        1500.0
    """

    kind: str
    payload: int
    group: int
    count: int = 1
    what: str = ""

    @property
    def sent(self) -> float:
        """Bytes that each rank sends, for all of them together, by a ring."""
        share = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            share = 2 * share
        elif self.kind == "broadcast":
            share = 1.0
        return self.count * share * self.payload


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The settings of a trainer and its runtime that change what ranks hold and send.

    Args:
        mesh: The strategy: `Mesh(replicate=4)` is DDP, `Mesh(shard=4)` FSDP2, both together HSDP.
        accumulate: The steps of an update.
        clips: Whether gradients are clipped by their norm.
        param_dtype: As for `DistributedRuntime`.
        reduce_dtype: As for `DistributedRuntime`.
        reshard_after_forward: As for `DistributedRuntime`.
        bucket_bytes: The size of the buckets in which DDP averages gradients.
        on_cpu: Whether the ranks are on CPUs, which exchange their messages in another form.

    Example:
        >>> from loopwright import Mesh
        >>> from loopwright.scaling import UpdateSettings
        >>> UpdateSettings(Mesh(shard=4), accumulate=2, clips=True).mesh.size
        4
    """

    mesh: Mesh
    accumulate: int = 1
    clips: bool = False
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    reshard_after_forward: bool | int | None = None
    bucket_bytes: int = BUCKET_BYTES
    on_cpu: bool = False

    def __post_init__(self) -> None:
        if self.mesh.tensor > 1:
            raise ConfigurationError(
                "cost-of-tensor-parallelism",
                f"{self.mesh}: what tensor-parallel ranks send depends on activations, which are "
                "not counted. Use a mesh of replicate and shard.",
            )


@dataclass(frozen=True, slots=True)
class RankCost:
    """What one rank holds between steps, in bytes, and what it sends in an update.

    Args:
        parameters: Its part of the parameters.
        gradients: Its part of the gradients.
        optimizer: Its part of the optimizer's state.
        buffers: All buffers.
        collectives: Every collective of an update, equal ones together.

    Example:
        >>> from loopwright.scaling import Collective, RankCost
        >>> sent = Collective("all-reduce", payload=412, group=2)
        >>> cost = RankCost(400, 400, 808, 0, (sent,))
        >>> cost.held, cost.sent
        (1608, 412.0)
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    collectives: tuple[Collective, ...]

    @property
    def held(self) -> int:
        """Parameters, gradients, optimizer and buffers. Activations come on top."""
        return self.parameters + self.gradients + self.optimizer + self.buffers

    @property
    def sent(self) -> float:
        """Bytes that the rank sends in an update."""
        return sum(each.sent for each in self.collectives)


def rank_cost(
    model: nn.Module, optimizer: Optimizer, settings: UpdateSettings, rank: int = 0
) -> RankCost:
    """The exact bytes that a rank holds, and that it sends in an update.

    Only shapes and dtypes are read, so that a model of any size may be on the meta device. The first
    rank holds the most. DDP fills its buckets in the order of gradients: here the reverse of the
    order in which the parameters are defined, which may divide a few buckets otherwise.

    Args:
        model: The model as it is on one device, before it is distributed.
        optimizer: The optimizer of the model's parameters.
        settings: The strategy, and what else changes what is sent.
        rank: The rank.

    Example:
        >>> import torch
        >>> from loopwright import Mesh
        >>> from loopwright.scaling import UpdateSettings, rank_cost
        >>> model = torch.nn.Linear(1000, 1000, device="meta")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> cost = rank_cost(model, optimizer, UpdateSettings(Mesh(shard=4)))
        >>> cost.parameters, cost.optimizer, round(cost.sent)
        (1001000, 1001000, 6006072)
    """
    place = rank % settings.mesh.shard
    part_of = {param: _part(param, settings.mesh.shard, place) for param in model.parameters()}
    state = 0
    for group in optimizer.param_groups:
        copies, extra = _kept_for_a_parameter(optimizer, group)
        for param in group["params"]:
            if param.requires_grad:
                state += copies * part_of[param] + extra
    return RankCost(
        parameters=sum(part_of.values()),
        gradients=sum(part for param, part in part_of.items() if param.requires_grad),
        optimizer=state,
        buffers=sum(buffer.nbytes for buffer in model.buffers()),
        collectives=_collectives_of(model, settings),
    )


def _part(param: Tensor, shards: int, place: int) -> int:
    """The bytes of a shard: torch cuts the first dimension into equal parts, but for the last ones,
    which may be smaller or empty."""
    rows = param.shape[0] if param.dim() else 0
    if shards == 1 or rows == 0:
        return param.nbytes
    most = ceil(rows / shards)
    own = max(0, min(most, rows - place * most))
    return own * (param.nbytes // rows)


def _kept_for_a_parameter(optimizer: Optimizer, group: dict[str, Any]) -> tuple[int, int]:
    """How many tensors of a parameter's shape an optimizer keeps for each parameter, and the bytes
    of numbers besides; found by letting one like it take a step."""
    param = nn.Parameter(torch.ones(3, 5))
    param.grad = torch.ones(3, 5)
    options = {name: value for name, value in group.items() if name in optimizer.defaults}
    probe = type(optimizer)([{"params": [param], **options}])  # type: ignore[call-arg]
    probe.step()
    copies = 0
    extra = 0
    for value in probe.state[param].values():
        if not isinstance(value, Tensor):
            continue
        if value.shape == param.shape:
            copies += 1
        elif value.numel() == 1:
            extra += value.nbytes
        else:
            raise ConfigurationError(
                "optimizer-state",
                f"{type(optimizer).__name__} keeps state of other shapes than its parameters, so "
                "its bytes cannot be computed from a small parameter.",
            )
    return copies, extra


def _collectives_of(model: nn.Module, settings: UpdateSettings) -> tuple[Collective, ...]:
    """Every collective that a rank takes part in during one update, equal ones together."""
    counts: Counter[Collective] = Counter()
    for each in _all_collectives(model, settings):
        if each.group > 1 and each.payload > 0:
            counts[replace(each, count=1)] += each.count
    return tuple(replace(each, count=count) for each, count in counts.items())


def _all_collectives(model: nn.Module, settings: UpdateSettings) -> Iterator[Collective]:
    mesh = settings.mesh
    trained = [param for param in model.parameters() if param.requires_grad]
    has_message = False
    if mesh.shard > 1:
        yield from _of_shards(model, settings)
    else:
        for bucket in fill_buckets(reversed(trained), settings.bucket_bytes):
            values = sum(param.numel() for param in bucket)
            numbers = MESSAGE_SIZE + len(bucket) + values  # the message, who has a gradient
            payload = numbers * bucket[0].element_size()
            yield Collective("all-reduce", payload, mesh.size, what="gradients")
            has_message |= bucket[0].dtype in MESSAGE_DTYPES
    # whether loss and gradients are finite on all ranks, and what a rank requests
    message = Collective("all-reduce", 4, mesh.size, what="messages")
    if not has_message:
        yield replace(message, payload=MESSAGE_SIZE * (8 if settings.on_cpu else 4))
    if mesh.shard > 1:  # ranks have different gradients
        yield message
    if not settings.on_cpu:
        yield replace(message, payload=8 * NUM_REQUESTS)
    if settings.clips:
        norms = sum(param.element_size() for param in trained)
        yield Collective("all-reduce", norms, mesh.shard, what="norms")
    buffers: Counter[torch.dtype] = Counter()
    for buffer in own_buffers(model):
        buffers[buffer.dtype] += buffer.nbytes
    for payload in buffers.values():
        yield Collective("broadcast", payload, mesh.size, what="buffers")


def _of_shards(model: nn.Module, settings: UpdateSettings) -> Iterator[Collective]:
    """What FSDP2 sends for each block, and for the rest of the model."""
    in_blocks: set[nn.Parameter] = set()
    for block in blocks_of(model):
        params = list(block.parameters())
        in_blocks.update(params)
        yield from _of_wrapped(params, settings, is_block=True)
    rest = [param for param in model.parameters() if param not in in_blocks]
    if rest:
        yield from _of_wrapped(rest, settings, is_block=False)


def _of_wrapped(
    params: Iterable[nn.Parameter], settings: UpdateSettings, *, is_block: bool
) -> Iterator[Collective]:
    """What FSDP2 sends for the parameters of a module that it wraps."""
    mesh = settings.mesh
    gathered = 0
    reduced = 0
    for param in params:
        # the first dimension is filled up to a multiple of the shards
        rows = param.shape[0] if param.dim() else 1
        padded = ceil(rows / mesh.shard) * mesh.shard * prod(param.shape[1:])
        param_dtype = settings.param_dtype or param.dtype
        gathered += padded * param_dtype.itemsize
        if param.requires_grad:
            reduced += padded * (settings.reduce_dtype or param_dtype).itemsize
    gather = Collective("all-gather", gathered, mesh.shard, settings.accumulate, "parameters")
    yield gather
    reshards = settings.reshard_after_forward
    if reshards is None:
        reshards = is_block
    if reshards and reduced:
        holders = mesh.shard if reshards is True else reshards
        yield replace(gather, group=holders)
    yield Collective("reduce-scatter", reduced, mesh.shard, what="gradients")
    yield Collective("all-reduce", reduced // mesh.shard, mesh.replicate, what="gradients")
