"""Seconds of an update: matrix products, the optimizer, and what of the communication is not hidden
behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log2

from .counting import Collective
from .hardware import Cluster
from .layout import Memory, Sizes, Training
from .model import ModelShape

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
    training: Training,
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
    each: list[tuple[Collective, float]], forward: float, compute: float, training: Training
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
