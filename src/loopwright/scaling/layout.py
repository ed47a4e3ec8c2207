"""How a strategy lays a model out: the sizes of its mesh, each rank's part of a parameter, and
bytes per rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigurationError, check_number
from ..runtime.ddp import BUCKET_BYTES
from ..runtime.dtensor import Mesh
from ..text import nearest
from .hardware import Cluster
from .model import ModelShape, Weight, by_block

AXES = ("replicate", "shard", "tensor")
STRATEGIES = ("ddp", "fsdp", "hsdp", "tp", "fsdp+tp")


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

    def group(self, axis: str) -> tuple[int, int]:
        """The number of ranks along an axis, and how many ranks lie between two neighbours."""
        if axis == "tensor":
            return self.tensor, 1
        if axis == "shard":
            return self.shard, self.tensor
        if axis == "replicate":
            return self.replicate, self.tensor * self.shard
        return (self.data, self.tensor) if axis == "data" else (self.world, 1)

    @property
    def runtime(self) -> str:
        """The argument of a trainer that asks for it."""
        if self.shard == self.tensor == 1:
            return 'runtime="ddp"'
        if self.replicate == self.tensor == 1:
            return 'runtime="fsdp"'
        axes = [f"{axis}={size}" for axis in AXES if (size := getattr(self, axis)) > 1]
        return f"runtime=Mesh({', '.join(axes)}{', plan=...' if self.tensor > 1 else ''})"


def resolve(strategy: str | Mesh | Mapping[str, int], devices: int, cluster: Cluster) -> Sizes:
    """The mesh of a strategy on some devices; a mesh of another size is refused."""
    check_number("devices", devices, least=1)
    if isinstance(strategy, Mesh):
        sizes = Sizes(strategy.replicate, strategy.shard, strategy.tensor)
    elif isinstance(strategy, Mapping):
        sizes = _from_mapping(strategy)
    else:
        sizes = _named(strategy, devices, min(cluster.per_node, devices))
    if sizes.world != devices:
        raise ConfigurationError(
            "mesh-size",
            f"A mesh of replicate={sizes.replicate} x shard={sizes.shard} x tensor={sizes.tensor} "
            f"is for {sizes.world} devices, but there are {devices}: change the mesh, or pass "
            f"devices={sizes.world}.",
        )
    return sizes


def _from_mapping(sizes: Mapping[str, int]) -> Sizes:
    for name, number in sizes.items():
        if name not in AXES:
            raise ConfigurationError("mesh-axis", f"{dict(sizes)}: {name!r}: {nearest(name, AXES)}")
        check_number(name, number, least=1)
    return Sizes(**sizes)


def unknown_strategy(name: object) -> ConfigurationError:
    text = f"There is no strategy {name!r}: {nearest(name, STRATEGIES)}"
    return ConfigurationError("unknown-strategy", text)


def _named(strategy: str, devices: int, per_node: int) -> Sizes:
    if strategy == "ddp":
        return Sizes(replicate=devices)
    if strategy == "fsdp":
        return Sizes(shard=devices)
    if strategy not in STRATEGIES:
        raise unknown_strategy(strategy)
    if devices % per_node:
        near = max(devices // per_node, 1) * per_node
        raise ConfigurationError(
            "partial-node",
            f"{strategy!r} needs whole nodes of {per_node} devices, but {devices} is not a "
            f"multiple: use {near} or {near + per_node}, or give the sizes of a mesh.",
        )
    if strategy == "hsdp":
        return Sizes(replicate=devices // per_node, shard=per_node)
    nodes = devices // per_node
    if strategy == "fsdp+tp":
        return Sizes(shard=nodes, tensor=per_node)
    return Sizes(replicate=nodes, tensor=per_node)


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


NAMED: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
}


def optimizer_state(optimizer: str | Optimizer | OptimizerState) -> OptimizerState:
    """What an optimizer keeps, found by letting one like it take a step with one small
    parameter."""
    if isinstance(optimizer, OptimizerState):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer.lower() not in NAMED:
            raise ConfigurationError(
                "unknown-optimizer",
                f"optimizer={optimizer!r}: {nearest(optimizer, NAMED)} For any other, pass the "
                "optimizer itself, or OptimizerState().",
            )
        kind, options = NAMED[optimizer.lower()]
        return _try_out(kind, options)
    groups = [
        {k: v for k, v in group.items() if k in optimizer.defaults}
        for group in optimizer.param_groups
    ]
    found = {_try_out(type(optimizer), options) for options in groups}
    if len(found) > 1:
        raise _no_state("The optimizer's parameter groups keep different state for each weight")
    return found.pop()


def _no_state(why: str) -> ConfigurationError:
    what = "pass optimizer=OptimizerState(values=, tensor_bytes=), the average of all weights."
    return ConfigurationError("optimizer-state", f"{why}: {what}")


def _try_out(kind: Any, options: dict[str, Any]) -> OptimizerState:
    param = nn.Parameter(torch.ones(3, 5))
    param.grad = torch.ones(3, 5)
    try:
        probe = kind([{"params": [param], **options}])
        probe.step()
    except Exception as error:
        raise _no_state(f"{kind.__name__} could not be tried out ({error})") from error
    kept = [value for value in probe.state[param].values() if isinstance(value, torch.Tensor)]
    if any(value.shape != param.shape and value.numel() > 1 for value in kept):
        raise _no_state(f"{kind.__name__} keeps state of other shapes than its parameters")
    alike = [value for value in kept if value.shape == param.shape]
    return OptimizerState(len(alike), sum(value.nbytes for value in kept if value.numel() <= 1))


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """What is trained how: the settings of a program that change memory and traffic, checked."""

    batch: int
    accumulate: int = 1
    optimizer: OptimizerState = OptimizerState(2, 4)
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    reshard_after_forward: bool | int | None = None
    activation_checkpointing: bool = False
    clips: bool = False
    is_host: bool = False
    overlaps: bool = True
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate"):
            check_number(name, getattr(self, name), least=1)
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
        return None if reshard is None or isinstance(reshard, bool) else reshard

    def samples(self, sizes: Sizes) -> float:
        """Samples of one rank in one step; below 1 where there are more ranks than samples."""
        whole = self.batch // self.accumulate
        return whole / sizes.data if whole < sizes.data else -(-whole // sizes.data)


def chunk(length: int, parts: int, place: int = 0) -> int:
    """The length of a part as torch cuts: all but the last have the same, and the last may be
    empty."""
    size = -(-length // parts)
    return max(0, min(size, length - place * size))


def layer_part(weight: Weight, sizes: Sizes, place: int = 0) -> tuple[int, ...]:
    """The shape of a rank's part of a weight that tensor parallelism cuts, before it is sharded."""
    if weight.cut is None or sizes.tensor == 1:
        return weight.shape
    return tuple(
        chunk(n, sizes.tensor, place) if dim == weight.cut else n
        for dim, n in enumerate(weight.shape)
    )


def local_numel(weight: Weight, sizes: Sizes, rank: int = 0) -> int:
    """The values of a weight that a rank holds; the first rank holds the most."""
    shape = layer_part(weight, sizes, rank % sizes.tensor)
    if sizes.shard == 1 or not shape:
        return prod(shape)
    return chunk(shape[0], sizes.shard, rank // sizes.tensor % sizes.shard) * prod(shape[1:])


def padded_numel(weight: Weight, sizes: Sizes) -> int:
    """The values that FSDP2 sends of a weight: its first dimension is filled up to a multiple of
    the shards."""
    shape = layer_part(weight, sizes)
    return -(-shape[0] // sizes.shard) * sizes.shard * prod(shape[1:])


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
    samples = max(1, -(-training.samples(sizes) // 1))
    cut = model.cut_activations * (1 - 1 / sizes.tensor)
    kept = model.checkpointed if training.activation_checkpointing else model.activations - cut
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=training.optimizer.values * gradients
        + training.optimizer.tensor_bytes * num_trained,
        buffers=sum(model.buffers),
        working=_working(model, sizes, training),
        activations=round(samples * kept),
    )


@lru_cache(maxsize=4096)
def _held(model: ModelShape, sizes: Sizes, rank: int) -> tuple[int, int, int]:
    """The bytes of a rank's parameters, those of the trained ones, and how many are trained."""
    own = [
        (weight, local_numel(weight, sizes, rank) * weight.dtype.itemsize)
        for weight in model.weights
    ]
    trained = [size for weight, size in own if weight.is_trained]
    return sum(size for _, size in own), sum(trained), len(trained)


def _working(model: ModelShape, sizes: Sizes, training: UpdateSettings) -> int:
    """Memory that comes and goes: of FSDP2 full parameters and gradients, of DDP a flat copy of
    every gradient."""
    if sizes.data == 1:
        return 0
    if sizes.shard == 1:
        return _held(model, sizes, 0)[1]
    full = full_by_block(model, sizes.tensor, training.param_dtype, training.reduce_dtype)
    outside = full.get(None, (0, 0))
    blocks = [size for block, size in full.items() if block is not None] or [(0, 0)]
    parameters = sum(size for size, _ in full.values())
    gradients = sum(size for _, size in full.values())
    # a block computes, the next one is being gathered
    if training.reshard_after_forward is not False:
        kept = 0 if training.num_keepers is None else parameters // training.num_keepers
        parameters = min(parameters, outside[0] + 2 * max(size for size, _ in blocks) + kept)
    # one is computed, one is being scattered; else FSDP2 keeps them all between steps
    if training.accumulate == 1:
        gradients = min(gradients, outside[1] + 2 * max(size for _, size in blocks))
    return parameters + gradients


@lru_cache(maxsize=256)
def full_by_block(
    model: ModelShape,
    tensor: int,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> dict[int | None, tuple[int, int]]:
    """Bytes of the full parameters of each block, and of their gradients, on a rank that has
    gathered them."""
    sizes = Sizes(tensor=tensor)
    found = {}
    for block, weights in by_block(model).items():
        own = [(weight, local_numel(weight, sizes)) for weight in weights]
        gathered = sum(
            numel * gathered_dtype(weight, param_dtype).itemsize for weight, numel in own
        )
        reduced = [(weight, numel) for weight, numel in own if weight.is_trained]
        dtypes = (param_dtype, reduce_dtype)
        found[block] = (
            gathered,
            sum(numel * reduced_dtype(weight, *dtypes).itemsize for weight, numel in reduced),
        )
    return found


def gathered_dtype(weight: Weight, param_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype in which FSDP2 gathers a weight."""
    return param_dtype or weight.dtype


def reduced_dtype(
    weight: Weight, param_dtype: torch.dtype | None, reduce_dtype: torch.dtype | None
) -> torch.dtype:
    """The dtype in which FSDP2 reduces the gradient of a weight."""
    return reduce_dtype or param_dtype or weight.dtype
