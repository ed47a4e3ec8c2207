"""How a strategy lays a model out over ranks: the mesh, the bytes that each rank holds, and every
collective of an update, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigurationError, check_number
from ..runtime.buckets import MESSAGE_DTYPES, MESSAGE_SIZE, fill_buckets
from ..runtime.consensus import NUM_REQUESTS
from ..runtime.ddp import BUCKET_BYTES
from ..text import nearest
from .counting import Collective
from .model import ModelShape, Weight


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a mesh: neighbouring ranks differ in `tensor`, then in `shard`, then in
    `replicate`."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def world(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data(self) -> int:
        """The number of ranks that work on different samples."""
        return self.replicate * self.shard

    @property
    def runtime(self) -> str:
        """The argument of a trainer that asks for it."""
        if self.shard == self.tensor == 1:
            return 'runtime="ddp"'
        if self.replicate == self.tensor == 1:
            return 'runtime="fsdp"'
        sizes = {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}
        axes = [f"{axis}={size}" for axis, size in sizes.items() if size > 1]
        if self.tensor > 1:
            axes.append("plan=...")
        return f"runtime=Mesh({', '.join(axes)})"


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """What an optimizer keeps: values for each weight, in its dtype, and bytes for each parameter
    tensor.

    Args:
        values: Values for each weight: 2 for Adam's two averages.
        tensor_bytes: Bytes for each parameter besides: 4 for Adam's counter of steps.

    Example:
        >>> from loopwright.scaling import OptimizerState
        >>> OptimizerState(values=1)  # an optimizer with momentum
        OptimizerState(values=1, tensor_bytes=0)
    """

    values: int = 0
    tensor_bytes: int = 0


NAMED = {
    "sgd": OptimizerState(0),
    "momentum": OptimizerState(1),
    "adam": OptimizerState(2, 4),
    "adamw": OptimizerState(2, 4),
}


def optimizer_state(optimizer: str | Optimizer | OptimizerState) -> OptimizerState:
    """What an optimizer keeps, found by letting one like it take a step with one small
    parameter."""
    if isinstance(optimizer, OptimizerState):
        return optimizer
    if isinstance(optimizer, Optimizer):
        found = {_try_out(optimizer, group) for group in optimizer.param_groups}
        if len(found) == 1 and None not in found:
            return found.pop()  # type: ignore[return-value]
        raise ConfigurationError(
            "optimizer-state",
            f"{type(optimizer).__name__} keeps state of other shapes than its parameters, or not "
            "the same for each of them: pass optimizer=OptimizerState(values=, tensor_bytes=), "
            "the average of all weights.",
        )
    if optimizer.lower() not in NAMED:
        raise ConfigurationError(
            "unknown-optimizer",
            f"optimizer={optimizer!r}: {nearest(optimizer, NAMED)} For any other, pass the "
            "optimizer itself, or OptimizerState().",
        )
    return NAMED[optimizer.lower()]


def _try_out(optimizer: Optimizer, group: dict[str, Any]) -> OptimizerState | None:
    param = nn.Parameter(torch.ones(3, 5))
    param.grad = torch.ones(3, 5)
    options = {name: value for name, value in group.items() if name in optimizer.defaults}
    probe = type(optimizer)([{"params": [param], **options}])  # type: ignore[call-arg]
    probe.step()
    kept = [value for value in probe.state[param].values() if isinstance(value, torch.Tensor)]
    single = [value for value in kept if value.numel() == 1]
    alike = [value for value in kept if value.shape == param.shape]
    if len(single) + len(alike) < len(kept):
        return None
    return OptimizerState(len(alike), sum(value.nbytes for value in single))


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """What is trained how: the settings of a program that change memory and traffic, checked."""

    batch: int
    accumulate: int = 1
    optimizer: OptimizerState = NAMED["adamw"]
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    reshard_after_forward: bool | int | None = None
    activation_checkpointing: bool = False
    clips: bool = False
    is_host: bool = False
    overlaps: bool = True
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        check_number("batch", self.batch, least=1)
        check_number("accumulate", self.accumulate, least=1)
        if self.batch % self.accumulate:
            raise ConfigurationError(
                "uneven-steps",
                f"batch={self.batch} samples per update cannot be divided into "
                f"accumulate={self.accumulate} steps: use a multiple of {self.accumulate}, or "
                "other steps.",
            )

    @property
    def num_keepers(self) -> int | None:
        """The number of ranks among which parameters are kept after the forward pass; None where
        they are freed."""
        reshard = self.reshard_after_forward
        return None if isinstance(reshard, bool) else reshard

    def samples(self, sizes: Sizes) -> float:
        """Samples of one rank in one step; below 1 where there are more ranks than samples."""
        share = self.batch / self.accumulate / sizes.data
        return share if share < 1 else ceil(share)


# What a rank holds


def chunk(length: int, parts: int, place: int = 0) -> int:
    """The length of a part as torch cuts: all but the last have the same, and the last may be
    empty."""
    size = ceil(length / parts)
    return max(0, min(size, length - place * size))


def layer_part(weight: Weight, tensor: int, place: int = 0) -> list[int]:
    """The shape of a rank's part of a weight that tensor parallelism cuts, before it is sharded."""
    shape = list(weight.shape)
    if weight.cut is not None:
        shape[weight.cut] = chunk(shape[weight.cut], tensor, place)
    return shape


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank.

    Parameters, gradients, optimizer and buffers are exact. Working memory (gathered parameters,
    full gradients, buckets) and activations are estimates.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    working: int
    activations: int

    @property
    def state(self) -> int:
        """What is exact: parameters, gradients, optimizer and buffers."""
        return self.parameters + self.gradients + self.optimizer + self.buffers

    @property
    def total(self) -> int:
        return self.state + self.working + self.activations


def memory_of(model: ModelShape, sizes: Sizes, training: UpdateSettings, rank: int = 0) -> Memory:
    """Bytes on a rank at the peak of a step."""
    parameters, gradients, num_trained = _held(model, sizes, rank)
    samples = ceil(training.samples(sizes))
    kept = model.checkpointed
    if not training.activation_checkpointing:
        kept = model.activations - model.cut_activations * (1 - 1 / sizes.tensor)
    state = training.optimizer
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=state.values * gradients + state.tensor_bytes * num_trained,
        buffers=sum(model.buffers),
        working=_working(model, sizes, training),
        activations=round(samples * kept),
    )


@lru_cache(maxsize=4096)
def _held(model: ModelShape, sizes: Sizes, rank: int) -> tuple[int, int, int]:
    """The bytes of a rank's parameters, those of the trained ones, and how many are trained."""
    parameters = 0
    trained = []
    for weight in model.weights:
        shape = layer_part(weight, sizes.tensor, rank % sizes.tensor)
        if shape:
            shape[0] = chunk(shape[0], sizes.shard, rank // sizes.tensor % sizes.shard)
        size = prod(shape) * weight.dtype.itemsize
        parameters += size
        if weight.is_trained:
            trained.append(size)
    return parameters, sum(trained), len(trained)


def _working(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> int:
    """Memory that comes and goes: of FSDP2 full parameters and gradients, of DDP a flat copy of
    every gradient."""
    if sizes.data == 1:
        return 0
    if sizes.shard == 1:
        return _held(model, sizes, 0)[1]
    parts = wrapped_parts(model, sizes, training)
    parameters = sum(part.parameters * count for part, count in parts.items())
    gradients = sum(part.gradients * count for part, count in parts.items())
    # the outermost module stays; a block computes, the next one is being gathered or scattered
    outside = [part for part in parts if part.is_outermost]
    blocks = [part for part in parts if not part.is_outermost]
    few = sum(part.parameters for part in outside)
    few += 2 * max((part.parameters for part in blocks), default=0)
    few_gradients = sum(part.gradients for part in outside)
    few_gradients += 2 * max((part.gradients for part in blocks), default=0)
    if training.reshard_after_forward is not False:
        kept = 0 if training.num_keepers is None else parameters // training.num_keepers
        parameters = min(parameters, few + kept)
    if training.accumulate == 1:  # else FSDP2 keeps them all between steps
        gradients = min(gradients, few_gradients)
    return parameters + gradients


class WrappedPart(NamedTuple):
    """Bytes of a module that FSDP2 wraps, with all its shards: in memory, and as it is sent, with
    the first dimension of each parameter filled up to a multiple of the shards."""

    is_outermost: bool
    parameters: int
    gradients: int
    gathered: int
    reduced: int


def wrapped_parts(
    model: ModelShape, sizes: Sizes, training: UpdateSettings
) -> Counter[WrappedPart]:
    """How many modules there are of each kind."""
    dtypes = (training.param_dtype, training.reduce_dtype)
    return _wrapped_parts(model, sizes.shard, sizes.tensor, *dtypes)


@lru_cache(maxsize=4096)
def _wrapped_parts(
    model: ModelShape,
    shard: int,
    tensor: int,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> Counter[WrappedPart]:
    blocks: dict[int | None, list[int]] = {}
    for weight in model.weights:
        rows, *rest = layer_part(weight, tensor)
        own = prod(rest)
        padded = own * ceil(rows / shard) * shard
        own *= rows
        gathered_size = (param_dtype or weight.dtype).itemsize
        reduced_size = (reduce_dtype or param_dtype or weight.dtype).itemsize * weight.is_trained
        sums = blocks.setdefault(weight.block, [0, 0, 0, 0])
        sums[0] += own * gathered_size
        sums[1] += own * reduced_size
        sums[2] += padded * gathered_size
        sums[3] += padded * reduced_size
    return Counter(WrappedPart(block is None, *sums) for block, sums in blocks.items())


# What a rank sends


def collectives_of(
    model: ModelShape, sizes: Sizes, training: UpdateSettings
) -> tuple[Collective, ...]:
    """Every collective that a rank takes part in during one update, equal ones together."""
    counts: Counter[Collective] = Counter()
    for each in _collectives(model, sizes, training):
        if each.group > 1 and each.payload > 0:
            counts[replace(each, count=1)] += each.count
    return tuple(replace(each, count=count) for each, count in counts.items())


def _collectives(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    # activations of layers that several ranks share, in every step
    for each in model.exchanges:
        payload = each.payload * max(1, round(training.samples(sizes)))
        count = each.count * training.accumulate
        yield replace(each, payload=payload, group=sizes.tensor, count=count, what="activations")
    has_message = False
    if sizes.shard > 1:
        yield from _of_shards(model, sizes, training)
    else:
        for payload, can_hold_message in _buckets(model, sizes.tensor, training.bucket_bytes):
            has_message |= can_hold_message and sizes.tensor == 1
            yield Collective("all-reduce", payload, sizes.data, 1, "data", "backward", "gradients")
    # whether loss and gradients are finite on all ranks, and what a rank requests
    message = Collective("all-reduce", 4, sizes.world, 1, "world", "update", "messages")
    if not has_message:
        yield replace(message, payload=MESSAGE_SIZE * (8 if training.is_host else 4))
    if sizes.replicate != sizes.world:  # ranks have different gradients
        yield message
    if not training.is_host:
        yield replace(message, payload=8 * NUM_REQUESTS)
    if training.clips:
        yield from _of_clipping(model, sizes)
    for size in model.buffers:
        yield Collective("broadcast", size, sizes.world, 1, "world", "update", "buffers")


@lru_cache(maxsize=256)
def _buckets(model: ModelShape, tensor: int, max_bytes: int) -> list[tuple[int, bool]]:
    """The bytes of each gradient bucket, and whether it can hold a message; in the order in which
    they are sent."""
    weights = {}
    params = []
    for index in model.gradient_order:
        weight = model.weights[index]
        param = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
        params.append(param)
        weights[id(param)] = weight
    found = []
    for bucket in fill_buckets(params, max_bytes):
        own = sum(prod(layer_part(weights[id(param)], tensor)) for param in bucket)
        numbers = MESSAGE_SIZE + len(bucket) + own  # a message, who has a gradient, the gradients
        found.append((numbers * bucket[0].element_size(), bucket[0].dtype in MESSAGE_DTYPES))
    return found


def _of_shards(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> Iterator[Collective]:
    """What FSDP2 sends for each block, and for the rest of the model."""
    for part, count in wrapped_parts(model, sizes, training).items():
        gather = Collective(
            "all-gather",
            part.gathered,
            sizes.shard,
            count * training.accumulate,
            "shard",
            "forward",
            "parameters",
        )
        yield gather
        reshards = training.reshard_after_forward
        if reshards is None:
            reshards = not part.is_outermost
        if reshards and part.reduced:
            yield replace(gather, group=training.num_keepers or sizes.shard, phase="backward")
        scatter = Collective(
            "reduce-scatter", part.reduced, sizes.shard, count, "shard", "backward", "gradients"
        )
        yield scatter
        yield replace(
            scatter,
            kind="all-reduce",
            payload=part.reduced // sizes.shard,
            group=sizes.replicate,
            axis="replicate",
        )


def _of_clipping(model: ModelShape, sizes: Sizes) -> Iterator[Collective]:
    """One number for each gradient, reduced along each axis that cuts it: for the weights that the
    plan of tensor parallelism names, and for the others."""
    placed = 0
    others = 0
    for weight in model.weights:
        size = weight.dtype.itemsize * weight.is_trained
        if weight.is_placed and sizes.tensor > 1:
            placed += size
        else:
            others += size
    norms = Collective("all-reduce", others, sizes.shard, 1, "shard", "update", "norms")
    yield norms
    yield replace(norms, payload=placed)
    yield replace(norms, payload=placed, group=sizes.tensor, axis="tensor")
