"""The state of torchmetrics objects on a trainer, which they themselves leave out of their state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..merging import Gather, merged
from .tree import Tree


@runtime_checkable
class _Metric(Protocol):
    """What torchmetrics calls the state of a metric: tensors, or lists of them, and how often it was updated."""

    _update_count: int

    @property
    def metric_state(self) -> Mapping[str, Any]: ...

    def reset(self) -> None: ...


def metric_states(modules: Mapping[str, nn.Module], gather: Gather | None = None) -> dict[str, Tree]:
    """What every metric among the modules has measured so far, by its path; with `gather`, on all processes."""
    metrics = _metrics(modules)
    states: dict[str, Tree] = {}
    with nullcontext() if gather is None or not metrics else merged(modules, gather):
        for path, metric in metrics.items():
            values = {key: list(v) if isinstance(v, list) else v for key, v in metric.metric_state.items()}
            states[path] = {"values": values, "updates": metric._update_count}
    return states


def load_metric_states(
    modules: Mapping[str, nn.Module], states: Mapping[str, Any], *, with_values: bool = True
) -> None:
    """Put back what `metric_states` gave; a metric that is new stays as it is.

    Without the values, where another process goes on with those of all, metrics begin anew.
    """
    for path, metric in _metrics(modules).items():
        if path in states:
            metric.reset()
            if with_values:
                for key, value in states[path]["values"].items():
                    setattr(metric, key, value)
                metric._update_count = states[path]["updates"]


def _metrics(modules: Mapping[str, nn.Module]) -> dict[str, _Metric]:
    found: dict[str, _Metric] = {}
    for name, module in modules.items():
        for path, part in module.named_modules(prefix=name):
            if isinstance(part, nn.ModuleDict):
                list(part.items())  # a collection shares the state of metrics that agree, and only brings it up here
            if isinstance(part, _Metric):
                found[path] = part
    return found
