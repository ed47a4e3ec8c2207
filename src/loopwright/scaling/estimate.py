"""What an update costs on machines that one does not have, and strategies side by side on growing
numbers of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, log2
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import ConfigurationError, check_number
from ..runtime.ddp import BUCKET_BYTES
from ..runtime.dtensor import Mesh
from ..text import nearest
from .counting import Collective
from .hardware import Cluster
from .layout import (
    Memory,
    OptimizerState,
    Sizes,
    UpdateSettings,
    collectives_of,
    memory_of,
    optimizer_state,
)
from .model import ModelShape

LOW = 0.5  # an efficiency below which a strategy is called bound by communication
EQUAL = 1.002  # settings whose times differ by less are the same
NEARLY = 1.05  # a simpler strategy that is as fast but for this is recommended
LAUNCH = 8.4e-6  # seconds before a collective begins; what NCCL's tuning tables assume
TITLES = {"ddp": "DDP", "fsdp": "FSDP2", "hsdp": "HSDP", "tp": "TP", "fsdp+tp": "FSDP2+TP"}


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
    def is_usable(self) -> bool:
        """Whether it fits, and every rank has a sample."""
        return self.fits and self.training.samples(self.sizes) >= 1

    @property
    def is_sensible(self) -> bool:
        """Whether it fits, every rank has a sample, and at least half of the time is spent on the
        model."""
        return self.is_usable and self.efficiency >= LOW

    @property
    def problems(self) -> dict[str, str]:
        """Why one would not train so: a word, and a sentence; empty where nothing is wrong."""
        found = {}
        if not self.fits:
            usable = self.cluster.usable_memory * self.cluster.device.memory
            found["memory"] = (
                f"a rank needs {self.memory.total / 1e9:.0f} GB of memory and can use "
                f"{usable / 1e9:.0f} GB"
            )
        if self.training.samples(self.sizes) < 1:
            whole = self.training.batch // self.training.accumulate
            found["samples"] = f"a step has {whole} samples for {self.sizes.data} ranks"
        if self.communication_share > 1 - LOW:
            found["waiting"] = f"communication takes {self.communication_share:.0%} of an update"
        return found

    @property
    def program_lines(self) -> list[str]:
        """The lines of a program that ask for it."""
        training = self.training
        strategy = self.sizes.runtime.removeprefix("runtime=")
        settings = []
        options = []
        if self.sizes.shard > 1:
            for name in ("param_dtype", "reduce_dtype", "reshard_after_forward"):
                if (value := getattr(training, name)) is not None:
                    settings.append(f"{name}={value}")
        if training.activation_checkpointing:
            settings.append("activation_checkpointing=True")
        if training.accumulate > 1:
            options.append(f"accumulate={training.accumulate}")
        # the peak of a device is that of bf16
        if training.param_dtype is None and not self.cluster.device.is_host:
            (settings or options).append('precision="bf16"')
        if settings:
            strategy = f"DistributedRuntime({', '.join([strategy, *settings])})"
        return [
            f"Trainer({', '.join(['...', f'runtime={strategy}', *options])})",
            f"trainer.train(data, batch_size={training.batch // training.accumulate})",
        ]

    def memory_on(self, rank: int) -> Memory:
        """Bytes on a rank."""
        return memory_of(self.model, self.sizes, self.training, rank)

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON has it."""
        return {
            "model": self.model.name,
            "parameters": self.model.num_parameters,
            "devices": self.devices,
            "mesh": asdict(self.sizes),
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
            "problems": list(self.problems.values()),
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
    cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
    sizes = _mesh_of(strategy, devices, cluster)
    _check_plan(model, f"tensor={sizes.tensor}", sizes.tensor > 1)
    of_shards = (param_dtype, reduce_dtype, reshard_after_forward)
    if sizes.shard == 1 and of_shards != (None, None, None):
        raise ConfigurationError(
            "setting-of-shards",
            "param_dtype=, reduce_dtype= and reshard_after_forward= are only for a sharded model. "
            "Use a mesh with shard > 1, or leave them out.",
        )
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
    return _estimate(model, sizes, training, cluster)


def _mesh_of(strategy: str | Mesh | Mapping[str, int], devices: int, cluster: Cluster) -> Sizes:
    """The mesh of a strategy on some devices; a mesh of another size is refused."""
    check_number("devices", devices, least=1)
    if isinstance(strategy, Mesh):
        sizes = Sizes(strategy.replicate, strategy.shard, strategy.tensor)
    elif isinstance(strategy, Mapping):
        sizes = Sizes(**strategy)
    else:
        _check_strategy(strategy)
        inside = min(cluster.per_node, devices)
        nodes = devices // inside
        sizes = {
            "ddp": Sizes(replicate=devices),
            "fsdp": Sizes(shard=devices),
            "hsdp": Sizes(replicate=nodes, shard=inside),
            "tp": Sizes(replicate=nodes, tensor=inside),
            "fsdp+tp": Sizes(shard=nodes, tensor=inside),
        }[strategy]
    if sizes.world != devices:
        raise ConfigurationError(
            "mesh-size",
            f"A mesh of replicate={sizes.replicate} x shard={sizes.shard} x tensor={sizes.tensor} "
            f"is for {sizes.world} devices, but there are {devices}: change the mesh, or pass "
            f"devices={sizes.world}.",
        )
    return sizes


def _check_strategy(name: str) -> None:
    if name not in TITLES:
        text = f"There is no strategy {name!r}: {nearest(name, TITLES)}"
        raise ConfigurationError("unknown-strategy", text)


def _check_plan(model: ModelShape, what: str, is_split: bool) -> None:
    if is_split and not model.has_plan:
        raise ConfigurationError(
            "no-plan",
            f"{what} splits layers, but the model was measured without a plan, so no layer is "
            "split: use measure(module, batch, plan={...}), with the plan of your Mesh.",
        )


def _estimate(
    model: ModelShape, sizes: Sizes, training: UpdateSettings, cluster: Cluster
) -> Estimate:
    """The estimate for settings that have been checked."""
    memory = memory_of(model, sizes, training)
    sent = collectives_of(model, sizes, training)
    samples = max(1.0, training.samples(sizes)) * training.accumulate
    flops = samples * (model.flops - model.cut_flops * (1 - 1 / sizes.tensor))
    forward = flops / 3 / (cluster.device.flops * cluster.utilisation)
    recompute = forward if training.activation_checkpointing else 0.0
    # read, and written again
    moved = 2 * memory.parameters + memory.gradients + 2 * memory.optimizer
    seconds = {each: seconds_of(each, sizes, cluster) for each in sent}
    timing = Timing(
        compute=3 * forward + recompute,
        recompute=recompute,
        optimizer=moved / cluster.device.bandwidth,
        communication=sum(seconds.values()),
        exposed=_exposed(seconds, forward, 2 * forward + recompute, training),
    )
    return Estimate(model, sizes, training, cluster, memory, sent, timing)


def seconds_of(sent: Collective, sizes: Sizes, cluster: Cluster) -> float:
    """The seconds of some equal collectives, one after the other, by the ring or, for all-reduces,
    by a tree.

    All groups along an axis are taken to send at the same time, so that they share the adapters of
    a node.
    """
    n = sent.group
    # how many ranks lie between two neighbours of a group
    strides = {"shard": sizes.tensor, "data": sizes.tensor, "replicate": sizes.tensor * sizes.shard}
    stride = strides.get(sent.axis, 1)
    inside = max(1, min(n, cluster.per_node // stride))  # ranks of a group on one node
    nodes = ceil(n / inside)
    within = cluster.within
    between = cluster.between
    bandwidth = within.bandwidth if inside > 1 else float("inf")
    if nodes > 1:
        adapters = cluster.adapters * inside / cluster.per_node
        bandwidth = min(bandwidth, between.bandwidth * adapters)
    bandwidth *= cluster.link_utilisation
    ring = (n - nodes) * within.latency + (nodes - 1) * between.latency
    if sent.kind == "all-reduce":
        ring *= 2
    seconds = ring + sent.wire / sent.count / bandwidth
    if sent.kind == "all-reduce":
        tree = 2 * ((inside - 1) * within.latency + log2(nodes) * between.latency)
        seconds = min(seconds, tree + 2 * sent.payload / bandwidth)
    return sent.count * (LAUNCH + seconds)


def _exposed(
    sent: Mapping[Collective, float], forward: float, backward: float, training: UpdateSettings
) -> float:
    """The seconds of communication that no computation hides.

    Collectives of activations are waited for at once. Gathered parameters arrive while the block
    before them computes, gradients leave while the rest of the backward pass computes; the first
    and the last of them wait for nothing. Messages between ranks take no time of the step.
    """
    exposed = sum(seconds for one, seconds in sent.items() if one.what != "messages")
    if not training.overlaps:
        return exposed
    for phase, window in (("forward", forward), ("backward", backward)):
        own = {
            one: seconds
            for one, seconds in sent.items()
            if one.phase == phase and one.what in ("gradients", "parameters")
        }
        if all(one.axis == "data" for one in own):
            window /= training.accumulate  # gradients are averaged in the last step only
        single = max((seconds / one.count for one, seconds in own.items()), default=0.0)
        exposed -= min(sum(own.values()) - single, window)
    return exposed


@dataclass(frozen=True)
class Range:
    """The numbers of devices at which a strategy is sensible, and why it is not below and above.

    Args:
        strategy: Its name.
        first: The smallest number; None where there is none.
        last: The largest number.
        before: Why it is not sensible on fewer; "" if fewer were not asked for.
        after: Why it is not sensible on more.

    Example:
        >>> from loopwright.scaling import Range
        >>> Range("ddp", 1, 64, after="communication takes 60% of an update").text
        'DDP: 1 to 64 devices; beyond that communication takes 60% of an update.'
    """

    strategy: str
    first: int | None
    last: int | None
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """The range in one sentence."""
        title = TITLES[self.strategy]
        if self.first is None:
            return f"{title}: on none of these numbers of devices: {self.before}."
        begin = f" (below: {self.before})" if self.before else ""
        end = f"; beyond that {self.after}" if self.after else ", the largest number requested"
        numbers = f"{self.first:,}"
        if self.last != self.first:
            numbers += f" to {self.last:,}"
        return f"{title}: {numbers} devices{begin}{end}."


@dataclass(frozen=True)
class Comparison:
    """Estimates of several strategies on several numbers of devices.

    Args:
        model: The model.
        cluster: The machines.
        devices: The numbers of devices, the smallest first.
        estimates: For each strategy that has a mesh of that size, the fastest settings that fit.

    Example:
        >>> from loopwright.scaling import compare, transformer
        >>> table = compare(transformer(24, 2048, sequence=2048), devices=(8, 64), batch=512)
        >>> table.best(8).sizes.runtime
        'runtime="ddp"'
    """

    model: ModelShape
    cluster: Cluster
    devices: tuple[int, ...]
    estimates: dict[tuple[str, int], Estimate]

    def best(self, devices: int) -> Estimate | None:
        """The strategy to use on so many devices: the simplest of the fastest that fit; None where
        none does."""
        found = [self.estimates.get((strategy, devices)) for strategy in TITLES]
        usable = [one for one in found if one is not None and one.is_usable]
        fastest = min((one.timing.step for one in usable), default=0.0)
        return next((one for one in usable if one.timing.step <= NEARLY * fastest), None)

    @property
    def advice(self) -> Estimate | None:
        """The best strategy on the largest number of devices on which it is sensible; None where
        none is."""
        found = [self.best(number) for number in reversed(self.devices)]
        return next((one for one in found if one is not None and one.is_sensible), None)

    def range_of(self, strategy: str) -> Range:
        """Where a strategy is sensible: it fits, every rank has a sample, half of the time is spent
        on the model."""
        found = {n: one for (name, n), one in self.estimates.items() if name == strategy}
        sensible = [n for n, one in found.items() if one.is_sensible]
        if not sensible:
            reasons = [_reason(one) for one in found.values()]
            return Range(strategy, None, None, before=["there is no such mesh", *reasons][-1])
        below = [_reason(one) for n, one in found.items() if n < sensible[0]]
        above = [_reason(one) for n, one in found.items() if n > sensible[-1]]
        return Range(strategy, sensible[0], sensible[-1], ["", *below][-1], [*above, ""][0])

    @property
    def ranges(self) -> list[Range]:
        strategies = {strategy for strategy, _ in self.estimates}
        return [self.range_of(strategy) for strategy in TITLES if strategy in strategies]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        best = {}
        for number in self.devices:
            one = self.best(number)
            best[str(number)] = None if one is None else {"runtime": one.sizes.runtime}
        return {
            "model": self.model.name,
            "parameters": self.model.num_parameters,
            "device": self.cluster.device.name,
            "estimates": [
                {"strategy": strategy, **one.to_dict()}
                for (strategy, _), one in self.estimates.items()
            ],
            "best": best,
            "ranges": [{"strategy": each.strategy, "text": each.text} for each in self.ranges],
        }


def _reason(one: Estimate) -> str:
    if one.problems:
        return next(iter(one.problems.values()))
    costs = "communication and the optimizer"
    if one.training.activation_checkpointing:
        costs = "recomputed activations and communication"
    return f"{costs} leave {one.efficiency:.0%} of an update for the model"


def compare(
    model: ModelShape,
    *,
    devices: Sequence[int],
    batch: int,
    cluster: Cluster | str = "h100",
    strategies: Sequence[str] | None = None,
    optimizer: str | Optimizer | OptimizerState = "adamw",
    param_dtype: torch.dtype | None = torch.bfloat16,
    reduce_dtype: torch.dtype | None = torch.float32,
    clip_norm: bool = True,
    overlap: bool = True,
) -> Comparison:
    """Estimate every strategy on every number of devices, each with the fastest settings that fit.

    The settings that are tried: steps of an update, recomputed activations, the number of shards of
    a copy ("hsdp") and of the ranks that share a layer ("tp").

    Args:
        model: The model: `measure(module, batch)` or `transformer(...)`.
        devices: The numbers of devices.
        batch: Samples of one update on all devices together, the same for every number of devices.
        cluster: A `Cluster`, or the name of its device.
        strategies: Those to compare, of "ddp", "fsdp", "hsdp", "tp" and "fsdp+tp"; by default all,
            with TP where the model has a plan.
        optimizer: As `estimate` takes it.
        param_dtype: The dtype that FSDP2 gathers parameters in.
        reduce_dtype: The dtype that FSDP2 reduces gradients in.
        clip_norm: Whether gradients are clipped by their norm.
        overlap: Whether gradients and gathered parameters travel while the devices compute.

    Returns:
        The estimates, with `best(devices)` and `ranges`.

    Example:
        >>> from loopwright.scaling import compare, transformer
        >>> table = compare(transformer(12, 768, sequence=1024), devices=[8], batch=256, strategies=["ddp"])
        >>> print(table.ranges[0].text)
        DDP: 8 devices, the largest number requested.
    """
    if strategies is None:
        strategies = [name for name in TITLES if model.has_plan or "tp" not in name]
    for name in strategies:
        _check_strategy(name)
        _check_plan(model, name, "tp" in name)
    cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
    sharded = UpdateSettings(
        batch,
        optimizer=optimizer_state(optimizer),
        param_dtype=param_dtype,
        reduce_dtype=reduce_dtype,
        clips=clip_norm,
        is_host=cluster.device.is_host,
        overlaps=overlap,
    )
    whole = replace(sharded, param_dtype=None, reduce_dtype=None)
    counts = tuple(sorted(set(devices)))
    found: dict[tuple[str, int], Estimate] = {}
    for number in counts:
        check_number("devices", number, least=1)
        for strategy in strategies:
            tried = []
            for sizes in _meshes(strategy, number, cluster.per_node):
                for training in _settings(model, sharded if sizes.shard > 1 else whole, sizes):
                    tried.append(_estimate(model, sizes, training, cluster))
            if tried:
                found[strategy, number] = _fastest(tried)
    return Comparison(model, cluster, counts, found)


def _meshes(strategy: str, devices: int, per_node: int) -> Iterator[Sizes]:
    """The meshes of a strategy on so many devices; layers are shared inside a node only."""
    inside = [1]
    if "tp" in strategy:
        inside = [n for n in _doubled(2, min(per_node, devices)) if devices % n == 0]
    for tensor in inside:
        data = devices // tensor
        shards = [1]
        if strategy == "fsdp":
            shards = [devices] if devices > 1 else []
        elif strategy == "hsdp":
            shards = _doubled(per_node, devices // 2)
        elif strategy == "fsdp+tp":
            shards = _doubled(2, data)
        for shard in shards:
            if data % shard == 0:
                yield Sizes(data // shard, shard, tensor)


def _doubled(first: int, last: int) -> list[int]:
    numbers = []
    while first <= last:
        numbers.append(first)
        first *= 2
    return numbers


def _settings(
    model: ModelShape, training: UpdateSettings, sizes: Sizes
) -> Iterator[UpdateSettings]:
    for steps in _doubled(1, max(1, training.batch // sizes.data)):
        if training.batch % steps == 0:
            yield replace(training, accumulate=steps)
            if model.checkpointed < model.activations:
                yield replace(training, accumulate=steps, activation_checkpointing=True)


def _fastest(tried: list[Estimate]) -> Estimate:
    """The fastest that fits; where none does, the one that needs the least memory."""
    sound = [one for one in tried if one.fits]
    if not sound:
        return min(tried, key=lambda one: one.memory.total)
    fastest = min(one.timing.step for one in sound)
    # the first, which is the simplest, of those that are as fast
    return next(one for one in sound if one.timing.step <= EQUAL * fastest)
