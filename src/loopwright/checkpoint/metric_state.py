"""What metrics with state of their own have measured in the epoch under way.

torchmetrics leave that out of their state dicts, so it is taken from them. Other objects with `compute` and `reset` are
saved through their `state_dict`; they are looked for on the trainer and on its callbacks, since their state has to be
back before the first step of a resumed run, and where they are is what they are called in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import nn

from ..data.interface import Stateful
from ..errors import CheckpointError, ConfigurationError
from ..hooks import Callback
from ..merging import Mergeable, merge_into
from ..meter import ComputedMetric
from .tree import Tree

if TYPE_CHECKING:
    from ..trainer import Trainer


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
