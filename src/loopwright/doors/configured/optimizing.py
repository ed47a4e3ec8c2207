"""The optimizer and the schedule of a run, from what its config says."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ...config import Config, build
from ...config.kinds import resolve_kind
from ...optim.build import Schedule
from ...optim.groups import GroupedOptimizer
from ...schedules import Curve
from .places import GROUPING, OPTIMIZER, SCHEDULER


def optimizer_of(node: Config) -> Any:
    """A factory, which the core calls once the model is where it computes."""

    def make(params: Any) -> Optimizer:
        optimizer: Optimizer = build(node, OPTIMIZER, params=params)
        return optimizer

    grouping = {name: node.get(name) for name in GROUPING if node.get(name)}
    return GroupedOptimizer(make, **grouping) if grouping else make


def scheduler_of(node: Config) -> Any:
    """A curve over the run as it is; of torch's schedulers a factory, with how often it is stepped if that is said."""
    kind = resolve_kind(node.get("kind"), SCHEDULER, node.folder)
    if isinstance(kind, type) and issubclass(kind, Curve):
        return build(node, SCHEDULER)
    return Schedule(lambda optimizer: build(node, SCHEDULER, optimizer=optimizer), every=node.get("every"))
