"""Metrics that keep their own state, as torchmetrics' do: merged over processes, and saved with a
checkpoint.

torchmetrics can merge states itself, but only where every process has the metric and has updated
it. With few samples, some processes may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

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
from ..data.containers import map_tensors
from ..data.stream import Stateful
from ..errors import CheckpointError, ConfigurationError
from .meter import ComputedMetric

Gather = Callable[[Any], list[Any]]
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MetricOwners:
    """The objects among which the metrics of a run are found.

    Args:
        modules: Modules that are metrics or have metrics as parts, by the beginning of their paths.
        objects: Objects that have metrics as attributes, by the beginning of their paths.
    """

    modules: Mapping[str, nn.Module]
    objects: Mapping[str, object]

    @classmethod
    def of(
        cls, modules: Mapping[str, nn.Module], program: object, callbacks: Sequence[Any]
    ) -> MetricOwners:
        """The modules of a trainer, the trainer itself, and its callbacks without a `state_dict` of
        their own."""
        objects = {"": program}
        for number, callback in enumerate(callbacks):
            if not callback.has_own_state:
                objects[f"{type(callback).__name__}-{number}."] = callback
        return cls(modules, objects)

    def attributes(self) -> dict[str, Any]:
        """Metrics among the attributes of objects, by path: `acc`, `scores.acc`,
        `Watching-0.acc`."""
        known = {id(part) for module in self.modules.values() for part in module.modules()}
        found: dict[str, Any] = {}
        for prefix, owner in self.objects.items():
            for path, value in attributes_of(owner):
                # most are none, and a protocol takes Python 3.11 some microseconds
                if not hasattr(value, "compute") or isinstance(value, type) or id(value) in known:
                    continue
                if isinstance(value, ComputedMetric):
                    known.add(id(value))
                    found[f"{prefix}{path}"] = value
        return found

    def by_path(self) -> dict[str, Any]:
        """Every metric, parts of modules included."""
        found: dict[str, Any] = {}
        for name, module in self.modules.items():
            parts = module.named_modules(prefix=name)
            found |= {path: part for path, part in parts if isinstance(part, ComputedMetric)}
        return found | self.attributes()


def attributes_of(owner: object) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, and the items of those that are dicts, lists or tuples, by
    path."""
    for name, value in vars(owner).items():
        yield name, value
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            yield from ((f"{name}.{at}", item) for at, item in enumerate(value))


def mergeable_parts(metric: object) -> dict[str, MergeableMetric]:
    """The mergeable metrics that a metric or a collection consists of, by path."""
    if not isinstance(metric, nn.Module):
        return {}
    return {path: part for path, part in _parts(metric) if isinstance(part, MergeableMetric)}


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for path, part in module.named_modules(prefix=prefix):
        if isinstance(part, nn.ModuleDict):
            # metrics of a collection may share one state, which is copied to each of them here
            list(part.items())
        yield path, part


@contextmanager
def merged(metrics: Mapping[str, object], gather: Gather) -> Iterator[list[set[str]]]:
    """Give every metric the merged state of all processes, inside the `with` block; collective.

    Yields the names of the metrics that each process has.
    """
    parts = {name: mergeable_parts(metric) for name, metric in metrics.items()}
    own = {
        name: {path: _state(part) for path, part in found.items()} for name, found in parts.items()
    }
    states = gather(map_tensors(Tensor.cpu, own))
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
    """Compute each metric over all processes; processes that lack a metric get its value too.
    Collective."""
    with merged(metrics, gather) as names:
        values = {name: metric.compute() for name, metric in metrics.items()}
    if all(theirs == names[0] for theirs in names):
        return values
    everywhere: dict[str, Any] = {}
    for computed in gather(map_tensors(Tensor.cpu, values)):
        everywhere |= {name: value for name, value in computed.items() if name not in everywhere}
    return everywhere


def merge(part: MergeableMetric, states: Sequence[State]) -> State:
    """Merge the states of several processes, leaving out metrics that were never updated."""
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
            stacked = (
                torch.cat([v.reshape(1) if v.dim() == 0 else v for v in column])
                if joins
                else torch.stack(column)
            )
            values[name] = stacked if reduce is None or joins else reduce(stacked)
    return {"values": values, "updates": sum(state["updates"] for state in states)}


def _state(part: CountedMetric) -> State:
    values = {name: list(v) if isinstance(v, list) else v for name, v in part.metric_state.items()}
    return {"values": values, "updates": update_count(part)}


def _set(part: MergeableMetric, state: State) -> None:
    device = getattr(part, "device", None) or torch.device("cpu")
    for name, value in state["values"].items():
        setattr(part, name, map_tensors(lambda tensor: tensor.to(device), value))
    set_update_count(part, state["updates"])
    forget_computed(part)


def metric_states(modules: Mapping[str, nn.Module]) -> dict[str, State]:
    """The state of every torchmetrics metric among the modules and their parts, by path."""
    return {path: _state(metric) for path, metric in _metrics(modules).items()}


def load_metric_states(
    modules: Mapping[str, nn.Module], states: Sequence[Mapping[str, Any]]
) -> None:
    """Load the `metric_states` of one or several processes, merged; a metric without a saved state
    stays as it is."""
    for path, metric in _metrics(modules).items():
        saved = [state[path] for state in states if path in state]
        if saved or not states:
            metric.reset()
        if len(saved) > 1 and isinstance(metric, MergeableMetric):
            _set(metric, merge(metric, saved))
        elif saved:
            for key, value in saved[0]["values"].items():
                setattr(metric, key, value)
            set_update_count(metric, saved[0]["updates"])


def _metrics(modules: Mapping[str, nn.Module]) -> dict[str, CountedMetric]:
    parts = (part for name, module in modules.items() for part in _parts(module, name))
    return {path: part for path, part in parts if isinstance(part, CountedMetric)}


def run_states(owners: MetricOwners) -> dict[str, State]:
    """The state of every metric of a run, by path."""
    modules, objects = _saved(owners)
    states = metric_states(modules)
    for path, metric in objects.items():
        states[path] = {"state": deepcopy(metric.state_dict())}
    return states


def load_run_states(
    owners: MetricOwners,
    states: Sequence[Mapping[str, Any]],
    *,
    is_in_epoch: bool,
    num_processes: int,
) -> None:
    """Load `run_states` of one or several processes. Those of metrics that are no modules cannot be
    merged, so they are loaded only between epochs."""
    modules, objects = _saved(owners)
    load_metric_states(modules, states)
    for path, metric in objects.items():
        saved = [state[path]["state"] for state in states if path in state]
        if len(saved) > 1 and is_in_epoch:
            raise CheckpointError(
                "metrics-of-other-processes",
                f"{path} was saved in the middle of an epoch on {len(saved)} processes, and their "
                f"partial results cannot be combined on {num_processes}: resume on {len(saved)} "
                "processes, or use a torchmetrics metric.",
            )
        if saved:
            metric.load_state_dict(deepcopy(saved[0]))


def _saved(owners: MetricOwners) -> tuple[dict[str, nn.Module], dict[str, Stateful]]:
    """The modules, and the other objects with a state, whose metrics a checkpoint saves."""
    modules = dict(owners.modules)
    objects: dict[str, Stateful] = {}
    for path, metric in owners.attributes().items():
        if isinstance(metric, nn.Module):
            modules[path] = metric
        elif isinstance(metric, Stateful):
            objects[path] = metric
    return modules, objects


def paths_of(computed: Mapping[str, ComputedMetric], owners: MetricOwners) -> dict[str, str]:
    """The paths of the metrics that an epoch computes, by the names they were logged under."""
    if not computed:
        return {}
    paths = {id(metric): path for path, metric in owners.by_path().items()}
    return {name: paths[id(metric)] for name, metric in computed.items() if id(metric) in paths}


def metrics_at(paths: Mapping[str, str], owners: MetricOwners) -> dict[str, ComputedMetric]:
    """The metrics at the paths that `paths_of` gave, by name, without those that are not there any
    more."""
    found = owners.by_path()
    return {name: found[path] for name, path in paths.items() if path in found}


def check_saved(owners: MetricOwners, name: str, metric: ComputedMetric) -> None:
    """Refuse a metric that no checkpoint would save, since a run resumed inside an epoch would lose
    its state."""
    kind = type(metric).__name__
    lost = "so a run that is resumed inside an epoch would lose its partial results"
    if not any(metric is known for known in owners.by_path().values()):
        raise ConfigurationError(
            "metric-not-saved",
            f"The metric {name!r} ({kind}) is not an attribute of the trainer or of a callback, "
            f"{lost}: make it one, as in `self.{name} = {kind}()`, or train without `run_dir`.",
        )
    if not isinstance(metric, nn.Module | Stateful):
        raise ConfigurationError(
            "metric-cannot-be-saved",
            f"The metric {name!r} ({kind}) has no `state_dict` and `load_state_dict`, {lost}: add "
            "both methods, return numbers instead (they are averaged for you), or train without "
            "`run_dir`.",
        )
