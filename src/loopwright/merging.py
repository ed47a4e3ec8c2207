"""Metrics that keep their own state, as torchmetrics' do, with the states of all processes as one.

torchmetrics can do that by itself, but then every process has to have the metric and to have updated it, which with
few samples is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Gather = Callable[[Any], list[Any]]
State = dict[str, Any]


@runtime_checkable
class Mergeable(Protocol):
    """What torchmetrics calls the state of a metric, and how those of several processes become one."""

    _update_count: int
    _computed: Any
    _to_sync: bool
    _reductions: Mapping[str, Callable[[Any], Any] | None]

    @property
    def metric_state(self) -> Mapping[str, Any]: ...

    def reset(self) -> None: ...


def parts_of(metric: object) -> dict[str, Mergeable]:
    """The metrics that a metric or a collection of them consists of, by their paths."""
    if not isinstance(metric, nn.Module):
        return {}
    found: dict[str, Mergeable] = {}
    for path, part in metric.named_modules():
        if isinstance(part, nn.ModuleDict):
            list(part.items())  # a collection shares the state of metrics that agree, and only brings it up here
        if isinstance(part, Mergeable):
            found[path] = part
    return found


@contextmanager
def merged(metrics: Mapping[str, object], gather: Gather) -> Iterator[list[set[str]]]:
    """Every metric with the state of all processes, and afterwards its own again.

    All processes have to come here; gives the names that each of them has.
    """
    parts = {name: parts_of(metric) for name, metric in metrics.items()}
    own = {name: {path: _state(part) for path, part in found.items()} for name, found in parts.items()}
    states = gather({name: {path: _to(state, "cpu") for path, state in found.items()} for name, found in own.items()})
    for name, found in parts.items():
        for path, part in found.items():
            others = [state[name][path] for state in states if path in state.get(name, {})]
            _set(part, merge(part, others))
            part._to_sync = False
    try:
        yield [set(state) for state in states]
    finally:
        for name, found in parts.items():
            for path, part in found.items():
                _set(part, own[name][path])
                part._to_sync = True


def compute_together(metrics: Mapping[str, Any], gather: Gather) -> dict[str, Any]:
    """What each metric computes over all processes, also on those that do not have it."""
    with merged(metrics, gather) as names:
        values = {name: metric.compute() for name, metric in metrics.items()}
    if all(theirs == names[0] for theirs in names):
        return values
    everywhere: dict[str, Any] = {}
    for computed in gather(_to(values, "cpu")):
        everywhere |= {name: value for name, value in computed.items() if name not in everywhere}
    return everywhere


def merge_copies(metric: object, copies: Sequence[object]) -> None:
    """Let a metric, or a collection of them, go on from what its copies have measured."""
    states = [{path: _state(part) for path, part in parts_of(copy).items()} for copy in copies]
    for path, part in parts_of(metric).items():
        merge_into(part, [state[path] for state in states])


def merge_into(part: Mergeable, states: Sequence[State]) -> None:
    """Let a metric go on from the states of several processes."""
    _set(part, merge(part, states))


def merge(part: Mergeable, states: Sequence[State]) -> State:
    """One state of several; those that were never updated have nothing to say."""
    updated = [state for state in states if state["updates"]] or list(states[:1])
    values = {}
    for name, reduce in part._reductions.items():
        column = [state["values"][name] for state in updated]
        if len(column) == 1:
            values[name] = column[0]
        elif isinstance(column[0], list):
            values[name] = [value for rows in column for value in rows]
        else:
            joins = getattr(reduce, "__name__", "") == "dim_zero_cat"
            stacked = torch.cat([v.reshape(1) if v.dim() == 0 else v for v in column]) if joins else torch.stack(column)
            values[name] = stacked if reduce is None or joins else reduce(stacked)
    return {"values": values, "updates": sum(state["updates"] for state in states)}


def _state(part: Mergeable) -> State:
    values = {name: list(v) if isinstance(v, list) else v for name, v in part.metric_state.items()}
    return {"values": values, "updates": part._update_count}


def _set(part: Mergeable, state: State) -> None:
    device = getattr(part, "device", None) or torch.device("cpu")
    for name, value in state["values"].items():
        setattr(part, name, _to(value, device))
    part._update_count = state["updates"]
    part._computed = None


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to(item, device) for key, item in value.items()}
    return [_to(item, device) for item in value] if isinstance(value, list) else value
