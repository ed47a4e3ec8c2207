"""What an update costs on machines that one does not have: memory, bytes on the wire, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import ConfigurationError
from ..runtime.ddp import BUCKET_BYTES
from ..runtime.distributed import Sharding, check_bucket_size
from ..runtime.dtensor import Mesh
from .counting import Collective
from .hardware import Cluster
from .layout import (
    Memory,
    OptimizerState,
    Sizes,
    UpdateSettings,
    local_numel,
    memory_of,
    optimizer_state,
    padded_numel,
    resolve,
)
from .model import ModelShape
from .traffic import collectives_of

LOW = 0.5  # an efficiency below which a strategy is called bound by communication
MUCH_PADDING = 1.25
THIN = 256  # columns of a layer


@dataclass(frozen=True)
class Estimate:
    """One update of a model with one strategy on some devices, as one rank sees it.

    Args:
        model: The model.
        sizes: The sizes of the mesh.
        training: The settings.
        cluster: The machines.
        memory: Bytes on the rank that holds the most, which is the first one.
        collectives: Every collective of an update, equal ones together.
        timing: Seconds of an update.

    Example:
        >>> from loopwright.scaling import estimate, transformer
        >>> model = transformer(24, 2048, sequence=2048)
        >>> one = estimate(model, "fsdp", devices=64, batch=512)
        >>> one.fits, one.sizes.runtime
        (True, 'runtime="fsdp"')
    """

    model: ModelShape
    sizes: Sizes
    training: UpdateSettings
    cluster: Cluster
    memory: Memory
    collectives: tuple[Collective, ...]
    timing: Timing

    @property
    def devices(self) -> int:
        return self.sizes.world

    @property
    def wire(self) -> float:
        """Bytes that a rank sends in an update."""
        return sum(each.wire for each in self.collectives)

    @property
    def samples_per_rank(self) -> float:
        """Samples of a rank in one step; below 1 where there are more ranks than samples."""
        return self.training.samples(self.sizes)

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.cluster.usable_memory * self.cluster.device.memory

    @property
    def communication_share(self) -> float:
        """The share of an update that waits for communication."""
        return self.timing.exposed / self.timing.step

    @property
    def efficiency(self) -> float:
        """The share of an update that all devices need for the model's operations, each computed
        once."""
        speed = self.devices * self.cluster.device.flops * self.cluster.utilisation
        return self.training.batch * self.model.flops / speed / self.timing.step

    @property
    def samples_per_second(self) -> float:
        return self.training.batch / self.timing.step

    @property
    def tokens_per_second(self) -> float:
        return self.samples_per_second * self.model.tokens

    @property
    def is_sensible(self) -> bool:
        """Whether it fits, every rank has a sample, and at least half of the time is spent on the
        model."""
        return self.fits and self.samples_per_rank >= 1 and self.efficiency >= LOW

    @property
    def problems(self) -> tuple[str, ...]:
        """Why one would not train so, in words; empty where nothing is wrong."""
        return tuple(text for _, text in _problems(self))

    @property
    def problem(self) -> str:
        """The first of the problems in one word, such as "memory" or "samples"; "" where nothing is
        wrong."""
        return next((name for name, _ in _problems(self)), "")

    @property
    def program_lines(self) -> list[str]:
        """The lines of a program that ask for it."""
        sizes = self.sizes
        training = self.training
        settings = [sizes.runtime.removeprefix("runtime=")]
        if sizes.shard > 1:
            for name in ("param_dtype", "reduce_dtype", "reshard_after_forward"):
                if (value := getattr(training, name)) is not None:
                    settings.append(f"{name}={value}")
        if training.activation_checkpointing:
            settings.append("activation_checkpointing=True")
        options = [] if training.accumulate == 1 else [f"accumulate={training.accumulate}"]
        # the peak of a device is that of bf16
        if training.param_dtype is None and not self.cluster.device.is_host:
            (settings if len(settings) > 1 else options).append('precision="bf16"')
        runtime = f"DistributedRuntime({', '.join(settings)})" if len(settings) > 1 else settings[0]
        return [
            f"Trainer({', '.join(['...', f'runtime={runtime}', *options])})",
            f"trainer.train(data, batch_size={training.batch // training.accumulate})",
        ]

    def memory_on(self, rank: int) -> Memory:
        """Bytes on a rank."""
        return memory_of(self.model, self.sizes, self.training, rank)

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON has it."""
        mesh = asdict(self.sizes)
        return {
            "model": self.model.name,
            "parameters": self.model.num_parameters,
            "devices": self.devices,
            "mesh": mesh,
            "runtime": self.sizes.runtime,
            "batch": self.training.batch,
            "accumulate": self.training.accumulate,
            "activation_checkpointing": self.training.activation_checkpointing,
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "fits": self.fits,
            "collectives": [{**asdict(each), "wire": each.wire} for each in self.collectives],
            "wire_bytes": self.wire,
            "seconds": {**asdict(self.timing), "step": self.timing.step},
            "communication_share": self.communication_share,
            "efficiency": self.efficiency,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "is_sensible": self.is_sensible,
            "problems": list(self.problems),
        }


def estimate(
    model: ModelShape,
    strategy: str | Mesh | Mapping[str, int] = "ddp",
    *,
    devices: int,
    batch: int,
    accumulate: int = 1,
    cluster: Cluster | str = "h100",
    optimizer: str | Optimizer | OptimizerState = "adamw",
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard_after_forward: bool | int | None = None,
    activation_checkpointing: bool = False,
    clip_norm: bool = False,
    overlap: bool = True,
    bucket_mb: float | None = None,
) -> Estimate:
    """Memory, bytes on the wire and seconds of one update, for one rank of many.

    Args:
        model: The model: `measure(module, batch)` or `transformer(...)`.
        strategy: "ddp", "fsdp", "hsdp" (shards inside a node), "tp" (layers cut inside a node,
            copies between nodes), "fsdp+tp", a `Mesh`, or its sizes as in
            `{"shard": 8, "tensor": 2}`.
        devices: How many there are.
        batch: Samples of one update on all devices together.
        accumulate: Steps of an update, each with `batch / accumulate` samples.
        cluster: A `Cluster`, or the name of its device: eight of them in a node, InfiniBand NDR
            between nodes.
        optimizer: "sgd", "momentum", "adam", "adamw", the optimizer itself, or an `OptimizerState`.
        param_dtype: The dtype that FSDP2 gathers parameters in.
        reduce_dtype: The dtype that FSDP2 reduces gradients in.
        reshard_after_forward: Whether FSDP2 frees parameters after the forward pass, or a number of
            ranks to keep them among; by default it frees all but those outside of the blocks.
        activation_checkpointing: Whether blocks are recomputed in the backward pass.
        clip_norm: Whether gradients are clipped by their norm, which shards have to add up.
        overlap: Whether gradients and gathered parameters travel while the devices compute.
        bucket_mb: The size in MiB of the buckets in which gradients are averaged with "ddp"; 25 by
            default.

    Returns:
        The estimate.

    Example:
        >>> from loopwright.scaling import estimate, transformer
        >>> model = transformer(12, 768, sequence=1024)
        >>> one = estimate(model, "ddp", devices=8, batch=64)
        >>> [(each.kind, each.what) for each in one.collectives][0]
        ('all-reduce', 'gradients')
    """
    if not isinstance(model, ModelShape):
        raise ConfigurationError(
            "unmeasured-model",
            f"estimate(model={type(model).__name__}): use measure(module, example_batch), which "
            "knows what a sample costs, or transformer(layers, width, sequence=...).",
        )
    cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
    sizes = resolve(strategy, devices, cluster)
    if sizes.tensor > 1 and not model.has_plan:
        raise no_plan(f"tensor={sizes.tensor}")
    sharding = Sharding(param_dtype, reduce_dtype, reshard_after_forward=reshard_after_forward)
    if sizes.shard == 1 and sharding.given():
        raise ConfigurationError(
            "setting-of-shards",
            f"{', '.join(sharding.given())}: only for a sharded model. Use a mesh with shard > 1, "
            "or leave it out.",
        )
    sharding.check_size(sizes.shard)
    check_bucket_size("fsdp" if sizes.shard > 1 else "ddp", bucket_mb)
    training = UpdateSettings(
        batch,
        accumulate,
        optimizer_state(optimizer),
        param_dtype,
        reduce_dtype,
        reshard_after_forward,
        activation_checkpointing,
        clip_norm,
        cluster.device.is_host,
        overlap,
        BUCKET_BYTES if bucket_mb is None else max(int(bucket_mb * (1 << 20)), 1),
    )
    return estimate_sizes(model, sizes, training, cluster)


def no_plan(what: str) -> ConfigurationError:
    return ConfigurationError(
        "no-plan",
        f"{what} splits layers, but the model was measured without a plan, so no layer is split: "
        "use measure(module, batch, plan={...}), with the plan of your Mesh.",
    )


def estimate_sizes(
    model: ModelShape, sizes: Sizes, training: UpdateSettings, cluster: Cluster
) -> Estimate:
    """The same for settings that have been checked."""
    memory = memory_of(model, sizes, training)
    sent = collectives_of(model, sizes, training)
    timing = time_of(model, sizes, training, cluster, memory, sent)
    return Estimate(model, sizes, training, cluster, memory, sent, timing)


def _problems(one: Estimate) -> Iterator[tuple[str, str]]:
    if not one.fits:
        usable = one.cluster.usable_memory * one.cluster.device.memory
        needed = f"{one.memory.total / 1e9:.0f} GB of memory"
        yield "memory", f"a rank needs {needed} and can use {usable / 1e9:.0f} GB"
    if one.samples_per_rank < 1:
        whole = one.training.batch // one.training.accumulate
        yield "samples", f"a step has {whole} samples for {one.sizes.data} ranks"
    if (padding := _padding(one)) > MUCH_PADDING:
        yield (
            "padding",
            f"there are more shards than rows to divide, so {padding:.1f} times the parameters "
            "are sent",
        )
    thin = (
        min((w.shape[w.cut] for w in one.model.weights if w.cut is not None), default=0)
        / one.sizes.tensor
    )
    if one.sizes.tensor > 1 and thin < THIN:
        yield "thin", f"layers are split into {thin:.0f} columns, too few for fast matrix products"
    if one.communication_share > 1 - LOW:
        yield "waiting", f"communication takes {one.communication_share:.0%} of an update"


def _padding(one: Estimate) -> float:
    """How much more is sent than there are parameters, since FSDP2 divides the first dimension
    only."""
    if one.sizes.shard == 1:
        return 1.0
    sent = sum(padded_numel(weight, one.sizes) for weight in one.model.weights)
    whole = Sizes(tensor=one.sizes.tensor)
    return sent / sum(local_numel(weight, whole) for weight in one.model.weights)


LAUNCH = 8.4e-6  # seconds before a collective begins; what NCCL's tuning tables assume


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one update.

    Args:
        compute: Matrix products, those that are recomputed included.
        recompute: The part of them that recomputes activations.
        optimizer: The optimizer's step, which is bound by memory.
        communication: All collectives one after the other, as if nothing overlapped.
        exposed: The part of them that nothing hides.
    """

    compute: float
    recompute: float
    optimizer: float
    communication: float
    exposed: float

    @property
    def step(self) -> float:
        return self.compute + self.optimizer + self.exposed


def time_of(
    model: ModelShape,
    sizes: Sizes,
    training: UpdateSettings,
    cluster: Cluster,
    memory: Memory,
    sent: Iterable[Collective],
) -> Timing:
    """How long an update takes, given what it keeps in memory and what it sends."""
    samples = max(1.0, training.samples(sizes)) * training.accumulate
    flops = samples * (model.flops - model.cut_flops * (1 - 1 / sizes.tensor))
    speed = cluster.device.flops * cluster.utilisation
    recompute = flops / 3 / speed if training.activation_checkpointing else 0.0
    compute = flops / speed + recompute
    # read, and written again
    moved = 2 * memory.parameters + memory.gradients + 2 * memory.optimizer
    each = [(one, seconds_of(one, sizes, cluster)) for one in sent]
    return Timing(
        compute=compute,
        recompute=recompute,
        optimizer=moved / cluster.device.bandwidth,
        communication=sum(seconds for _, seconds in each),
        exposed=_exposed(each, flops / 3 / speed, compute, training),
    )


def seconds_of(sent: Collective, sizes: Sizes, cluster: Cluster) -> float:
    """The seconds of some equal collectives, one after the other, by the ring or, for all-reduces,
    by a tree.

    All groups along an axis are taken to send at the same time, so that they share the adapters of
    a node.
    """
    n = sent.group
    (_, stride) = sizes.group(sent.axis)
    inside = max(1, min(n, cluster.per_node // stride))  # ranks of a group on one node
    nodes = ceil(n / inside)
    bandwidth = cluster.within.bandwidth if inside > 1 else float("inf")
    if nodes > 1:
        bandwidth = min(
            bandwidth, cluster.between.bandwidth * cluster.adapters * inside / cluster.per_node
        )
    bandwidth *= cluster.link_utilisation
    passes = 2 if sent.kind == "all-reduce" else 1
    ring = passes * ((n - nodes) * cluster.within.latency + (nodes - 1) * cluster.between.latency)
    transfer = sent.wire / sent.count / bandwidth
    seconds = ring + transfer
    if sent.kind == "all-reduce":
        tree = 2 * ((inside - 1) * cluster.within.latency + log2(nodes) * cluster.between.latency)
        seconds = min(seconds, tree + 2 * sent.payload / bandwidth)
    return sent.count * (LAUNCH + seconds)


def _exposed(
    each: list[tuple[Collective, float]], forward: float, compute: float, training: UpdateSettings
) -> float:
    """The seconds of communication that no computation hides.

    Collectives of activations are waited for at once. Gathered parameters arrive while the block
    before them computes, gradients leave while the rest of the backward pass computes; the first
    and the last of them wait for nothing. Messages between ranks take no time of the step.
    """
    activations = sum(seconds for one, seconds in each if one.what == "activations")
    others = [(one, seconds) for one, seconds in each if one.what in ("gradients", "parameters")]
    norms = sum(seconds for one, seconds in each if one.what in ("norms", "buffers"))
    if not training.overlaps:
        return activations + norms + sum(seconds for _, seconds in others)
    hidden = 0.0
    for phase, window in (("forward", forward), ("backward", compute - forward)):
        own = [(one, seconds) for one, seconds in others if one.phase == phase]
        if all(one.what == "gradients" and one.axis == "data" for one, _ in own):
            window /= training.accumulate  # in the last step only
        total = sum(seconds for _, seconds in own)
        single = max((seconds / one.count for one, seconds in own), default=0.0)
        hidden += min(total - single, window)
    return activations + norms + sum(seconds for _, seconds in others) - hidden
