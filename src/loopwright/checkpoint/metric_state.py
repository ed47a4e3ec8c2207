"""The state of torchmetrics objects on a trainer, which they themselves leave out of their state dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from ..merging import Mergeable, merge_into
from .tree import Tree


@runtime_checkable
class _Metric(Protocol):
    """What torchmetrics calls the state of a metric: tensors, or lists of them, and how often it was updated."""

    _update_count: int

    @property
    def metric_state(self) -> Mapping[str, Any]: ...

    def reset(self) -> None: ...


def metric_states(modules: Mapping[str, nn.Module]) -> dict[str, Tree]:
    """What every metric among the modules has measured so far, by its path."""
    states: dict[str, Tree] = {}
    for path, metric in _metrics(modules).items():
        values = {key: list(v) if isinstance(v, list) else v for key, v in metric.metric_state.items()}
        states[path] = {"values": values, "updates": metric._update_count}
    return states


def load_metric_states(modules: Mapping[str, nn.Module], states: Sequence[Mapping[str, Any]]) -> None:
    """Put back what `metric_states` gave, of several processes as one; a metric that is new stays as it is."""
    for path, metric in _metrics(modules).items():
        saved = [state[path] for state in states if path in state]
        if saved or not states:
            metric.reset()
        if len(saved) > 1 and isinstance(metric, Mergeable):
            merge_into(metric, saved)
        elif saved:
            for key, value in saved[0]["values"].items():
                setattr(metric, key, value)
            metric._update_count = saved[0]["updates"]


def _metrics(modules: Mapping[str, nn.Module]) -> dict[str, _Metric]:
    found: dict[str, _Metric] = {}
    for name, module in modules.items():
        for path, part in module.named_modules(prefix=name):
            if isinstance(part, nn.ModuleDict):
                list(part.items())  # a collection shares the state of metrics that agree, and only brings it up here
            if isinstance(part, _Metric):
                found[path] = part
    return found
