"""Metrics that keep their own state, as torchmetrics' do, with the states of all processes as one.

torchmetrics can do that by itself, but then every process has to have the metric and to have updated it, which with
few samples is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._torch_compat import (
    CountedMetric,
    MergeableMetric,
    forget_computed,
    reductions_of,
    set_syncing,
    set_update_count,
    update_count,
)
from ..callback import Callback
from ..checkpoint.tree import Tree
from ..data.stream import Stateful
from ..errors import CheckpointError, ConfigurationError
from .meter import ComputedMetric

if TYPE_CHECKING:
    from ..trainer import Trainer


Gather = Callable[[Any], list[Any]]
State = dict[str, Any]


def parts_of(metric: object) -> dict[str, MergeableMetric]:
    """The metrics that a metric or a collection of them consists of, by their paths."""
    if not isinstance(metric, nn.Module):
        return {}
    found: dict[str, MergeableMetric] = {}
    for path, part in metric.named_modules():
        if isinstance(part, nn.ModuleDict):
            list(part.items())  # a collection shares the state of metrics that agree, and only brings it up here
        if isinstance(part, MergeableMetric):
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
            set_syncing(part, False)
    try:
        yield [set(state) for state in states]
    finally:
        for name, found in parts.items():
            for path, part in found.items():
                _set(part, own[name][path])
                set_syncing(part, True)


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


def merge_into(part: MergeableMetric, states: Sequence[State]) -> None:
    """Let a metric go on from the states of several processes."""
    _set(part, merge(part, states))


def merge(part: MergeableMetric, states: Sequence[State]) -> State:
    """One state of several; those that were never updated have nothing to say."""
    updated = [state for state in states if state["updates"]] or list(states[:1])
    values = {}
    for name, reduce in reductions_of(part).items():
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


def _state(part: MergeableMetric) -> State:
    values = {name: list(v) if isinstance(v, list) else v for name, v in part.metric_state.items()}
    return {"values": values, "updates": update_count(part)}


def _set(part: MergeableMetric, state: State) -> None:
    device = getattr(part, "device", None) or torch.device("cpu")
    for name, value in state["values"].items():
        setattr(part, name, _to(value, device))
    set_update_count(part, state["updates"])
    forget_computed(part)


def _to(value: Any, device: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to(item, device) for key, item in value.items()}
    return [_to(item, device) for item in value] if isinstance(value, list) else value


def metric_states(modules: Mapping[str, nn.Module]) -> dict[str, Tree]:
    """What every metric among the modules has measured so far, by its path."""
    states: dict[str, Tree] = {}
    for path, metric in _metrics(modules).items():
        values = {key: list(v) if isinstance(v, list) else v for key, v in metric.metric_state.items()}
        states[path] = {"values": values, "updates": update_count(metric)}
    return states


def load_metric_states(modules: Mapping[str, nn.Module], states: Sequence[Mapping[str, Any]]) -> None:
    """Put back what `metric_states` gave, of several processes as one; a metric that is new stays as it is."""
    for path, metric in _metrics(modules).items():
        saved = [state[path] for state in states if path in state]
        if saved or not states:
            metric.reset()
        if len(saved) > 1 and isinstance(metric, MergeableMetric):
            merge_into(metric, saved)
        elif saved:
            for key, value in saved[0]["values"].items():
                setattr(metric, key, value)
            set_update_count(metric, saved[0]["updates"])


def _metrics(modules: Mapping[str, nn.Module]) -> dict[str, CountedMetric]:
    found: dict[str, CountedMetric] = {}
    for name, module in modules.items():
        for path, part in module.named_modules(prefix=name):
            if isinstance(part, nn.ModuleDict):
                list(part.items())  # a collection shares the state of metrics that agree, and only brings it up here
            if isinstance(part, CountedMetric):
                found[path] = part
    return found


def object_states(trainer: Trainer) -> dict[str, Tree]:
    """What every object with `compute`, `reset` and a `state_dict` has measured so far, by where it is."""
    return {path: {"state": deepcopy(metric.state_dict())} for path, metric in _plain(trainer).items()}


def load_object_states(trainer: Trainer, states: Sequence[Mapping[str, Any]], *, is_in_epoch: bool) -> None:
    """Put back what `object_states` gave; of several processes only between epochs, where nothing is measured."""
    for path, metric in _plain(trainer).items():
        saved = [state[path]["state"] for state in states if path in state]
        if len(saved) > 1 and is_in_epoch:
            raise CheckpointError(
                f"{path} was measuring an epoch on {len(saved)} processes, and what they had measured cannot be joined "
                f"on {trainer.runtime.num_shares}: resume on {len(saved)} processes, or use a torchmetrics metric."
            )
        if saved:
            metric.load_state_dict(deepcopy(saved[0]))


def computed_paths(trainer: Trainer) -> dict[str, str]:
    """Where the metrics are that the epoch under way computes, by the names they were logged under."""
    paths = {id(metric): path for path, metric in _all(trainer).items()}
    return {name: paths[id(m)] for name, m in trainer.meter.computed.items() if id(m) in paths}


def load_computed(trainer: Trainer, saved: Mapping[str, str]) -> None:
    """Let the epoch compute what it did before, also where a metric was logged in its first steps only."""
    found = _all(trainer)
    trainer.meter.computed = {name: found[path] for name, path in saved.items() if path in found}


def check_saved(trainer: Trainer, name: str, metric: ComputedMetric) -> None:
    """Refuse a metric whose state no checkpoint would have, since a run resumed inside an epoch would lose it."""
    kind = type(metric).__name__
    lost = "so a run that is resumed inside an epoch would lose what it has measured"
    if not any(metric is known for known in _all(trainer).values()):
        raise ConfigurationError(
            f"The metric {name!r} ({kind}) is no attribute of the trainer or of a callback, {lost}: keep it in one, as "
            f"in `self.{name} = {kind}()`, or train without `run_dir`."
        )
    if not isinstance(metric, nn.Module | Stateful):
        raise ConfigurationError(
            f"The metric {name!r} ({kind}) has no `state_dict` and `load_state_dict`, {lost}: give it both, return "
            "numbers instead, which are averaged for you, or train without `run_dir`."
        )


def modules_with_metrics(trainer: Trainer) -> dict[str, nn.Module]:
    """The trainer's modules, and metrics that are modules and that callbacks hold."""
    held = {path: metric for path, metric in _objects(trainer).items() if isinstance(metric, nn.Module)}
    return trainer.modules | held


def _plain(trainer: Trainer) -> dict[str, Stateful]:
    found = _objects(trainer).items()
    return {path: m for path, m in found if isinstance(m, Stateful) and not isinstance(m, nn.Module)}


def _all(trainer: Trainer) -> dict[str, Any]:
    """Every metric on the trainer and its callbacks, with those that are modules."""
    parts = {path: part for name, m in trainer.modules.items() for path, part in m.named_modules(prefix=name)}
    return {path: part for path, part in parts.items() if isinstance(part, ComputedMetric)} | _objects(trainer)


def _objects(trainer: Trainer) -> dict[str, Any]:
    """Metrics that are no modules of the trainer, by where they are: `acc`, `scores.acc`, `Watching.acc`."""
    known = {id(part) for module in trainer.modules.values() for part in module.modules()}
    found: dict[str, Any] = {}
    for prefix, owner in _owners(trainer):
        for path, value in _attributes(owner):
            if isinstance(value, ComputedMetric) and not isinstance(value, type) and id(value) not in known:
                known.add(id(value))
                found[f"{prefix}{path}"] = value
    return found


def _owners(trainer: Trainer) -> Iterator[tuple[str, object]]:
    """The trainer, and the callbacks that do not save their own state."""
    yield "", trainer
    for number, callback in enumerate(trainer.active_callbacks):
        if type(callback).state_dict is Callback.state_dict:
            yield f"{type(callback).__name__}-{number}.", callback


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    """What an object holds, and what the dicts and lists among that hold."""
    for name, value in vars(owner).items():
        yield name, value
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            yield from ((f"{name}.{at}", item) for at, item in enumerate(value))
