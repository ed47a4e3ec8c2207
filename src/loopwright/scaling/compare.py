"""Strategies side by side on growing numbers of devices: where each begins to fit and stops being
sensible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import ConfigurationError, check_number
from .estimate import Estimate, estimate_sizes, no_plan
from .hardware import Cluster
from .layout import (
    STRATEGIES,
    OptimizerState,
    Sizes,
    UpdateSettings,
    optimizer_state,
    unknown_strategy,
)
from .model import ModelShape

EQUAL = 1.002  # settings whose times differ by less are the same
NEARLY = 1.05  # a simpler strategy that is as fast but for this is recommended
TITLES = {"ddp": "DDP", "fsdp": "FSDP2", "hsdp": "HSDP", "tp": "TP", "fsdp+tp": "FSDP2+TP"}


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
        if self.first == self.last:
            return f"{title}: {self.first:,} devices{begin}{end}."
        return f"{title}: {self.first:,} to {self.last:,} devices{begin}{end}."


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
        found = [self.estimates.get((strategy, devices)) for strategy in STRATEGIES]
        sound = [one for one in found if one is not None and one.fits and one.samples_per_rank >= 1]
        fastest = min((one.timing.step for one in sound), default=0.0)
        return next((one for one in sound if one.timing.step <= NEARLY * fastest), None)

    @property
    def advice(self) -> Estimate | None:
        """The best strategy on the largest number of devices on which it is sensible; None where
        none is."""
        found = [self.best(number) for number in reversed(self.devices)]
        return next((one for one in found if one is not None and one.is_sensible), None)

    def range_of(self, strategy: str) -> Range:
        """Where a strategy is sensible: it fits, every rank has a sample, half of the time is spent
        on the model."""
        found = [
            (n, self.estimates[strategy, n])
            for n in self.devices
            if (strategy, n) in self.estimates
        ]
        sound = [n for n, one in found if one.is_sensible]
        if not sound:
            return Range(
                strategy,
                None,
                None,
                before=_reason(found[-1][1]) if found else "there is no such mesh",
            )
        before = [one for n, one in found if n < sound[0]]
        after = [one for n, one in found if n > sound[-1]]
        return Range(
            strategy,
            sound[0],
            sound[-1],
            _reason(before[-1]) if before else "",
            _reason(after[0]) if after else "",
        )

    @property
    def ranges(self) -> list[Range]:
        strategies = {strategy for strategy, _ in self.estimates}
        return [self.range_of(strategy) for strategy in STRATEGIES if strategy in strategies]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        best = {n: self.best(n) for n in self.devices}
        return {
            "model": self.model.name,
            "parameters": self.model.num_parameters,
            "device": self.cluster.device.name,
            "estimates": [
                {"strategy": key[0], **one.to_dict()} for key, one in self.estimates.items()
            ],
            "best": {
                str(n): None if one is None else {"runtime": one.sizes.runtime}
                for n, one in best.items()
            },
            "ranges": [{"strategy": each.strategy, "text": each.text} for each in self.ranges],
        }


def _reason(one: Estimate) -> str:
    if one.problems:
        return one.problems[0]
    if one.training.activation_checkpointing:
        return (
            f"recomputed activations and communication leave {one.efficiency:.0%} of an "
            "update for the model"
        )
    return f"communication and the optimizer leave {one.efficiency:.0%} of an update for the model"


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
    if not devices:
        raise ConfigurationError("no-devices", "compare(devices=[]): name a number of devices.")
    strategies = _checked(model, strategies)
    cluster = cluster if isinstance(cluster, Cluster) else Cluster(cluster)
    base = UpdateSettings(
        batch,
        optimizer=optimizer_state(optimizer),
        param_dtype=param_dtype,
        reduce_dtype=reduce_dtype,
        clips=clip_norm,
        is_host=cluster.device.is_host,
        overlaps=overlap,
    )
    counts = tuple(sorted(set(devices)))
    found: dict[tuple[str, int], Estimate] = {}
    for number in counts:
        for strategy in strategies:
            one = _fastest(model, cluster, base, _meshes(strategy, number, cluster.per_node))
            if one is not None:
                found[strategy, number] = one
    return Comparison(model, cluster, counts, found)


def _checked(model: ModelShape, strategies: Sequence[str] | None) -> Sequence[str]:
    known = [name for name in STRATEGIES if model.has_plan or "tp" not in name]
    for name in strategies or ():
        if name not in STRATEGIES:
            raise unknown_strategy(name)
        if name not in known:
            raise no_plan(name)
    return strategies or known


def _meshes(strategy: str, devices: int, per_node: int) -> Iterator[Sizes]:
    """The meshes of a strategy on so many devices; layers are shared inside a node only."""
    check_number("devices", devices, least=1)
    inside = [n for n in _doubled(2, min(per_node, devices)) if devices % n == 0]
    if strategy == "ddp":
        yield Sizes(replicate=devices)
    elif strategy == "fsdp" and devices > 1:
        yield Sizes(shard=devices)
    elif strategy == "hsdp":
        for shard in _doubled(per_node, devices // 2):
            if devices % shard == 0:
                yield Sizes(devices // shard, shard)
    elif strategy == "tp":
        yield from (Sizes(devices // tensor, 1, tensor) for tensor in inside)
    elif strategy == "fsdp+tp":
        for tensor in inside:
            for shard in _doubled(2, devices // tensor):
                if devices // tensor % shard == 0:
                    yield Sizes(devices // tensor // shard, shard, tensor)


def _doubled(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def _fastest(
    model: ModelShape, cluster: Cluster, base: UpdateSettings, meshes: Iterator[Sizes]
) -> Estimate | None:
    """The fastest settings that fit; where none do, those that need the least memory."""
    tried = [
        estimate_sizes(model, sizes, replace(_without_policy(base, sizes), **settings), cluster)
        for sizes in meshes
        for settings in _settings(model, base.batch, sizes)
    ]
    sound = [one for one in tried if one.fits]
    if sound:  # the first, which is the simplest, of those that are as fast
        fastest = min(one.timing.step for one in sound)
        return next(one for one in sound if one.timing.step <= EQUAL * fastest)
    return min(tried, key=lambda one: one.memory.total, default=None)


def _without_policy(training: UpdateSettings, sizes: Sizes) -> UpdateSettings:
    return training if sizes.shard > 1 else replace(training, param_dtype=None, reduce_dtype=None)


def _settings(model: ModelShape, batch: int, sizes: Sizes) -> Iterator[dict[str, Any]]:
    can_recompute = model.checkpointed < model.activations
    for steps in _doubled(1, max(1, batch // sizes.data)):
        if batch % steps == 0:
            for recomputes in (False, True) if can_recompute else (False,):
                yield {"accumulate": steps, "activation_checkpointing": recomputes}
