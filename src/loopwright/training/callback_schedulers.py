"""Schedulers that a callback has as attributes: a checkpoint holds their state, if the callback
saves none itself.

A callback may make its scheduler before a run is restored (in its constructor) or after (in
`on_train_start`). A new scheduler sets the learning rate of its optimizer anew, so that the values
of a checkpoint are set again after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..metrics.meter import ComputedMetric
from ..metrics.metric_objects import attributes_of
from .components import is_trained

if TYPE_CHECKING:
    from .components import Components

KEY = "held schedulers"  # the only entry of a state that is not the callback's own


class SavedCallback(Protocol):
    """A callback of the core or of an interface."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


def schedulers_of(callback: object) -> dict[str, LRScheduler]:
    """Return the schedulers among the attributes of a callback, and in lists and dicts there, by
    path."""
    return {
        path: value for path, value in attributes_of(callback) if isinstance(value, LRScheduler)
    }


def state_of(callback: SavedCallback) -> dict[str, Any]:
    """Return the state of a callback for a checkpoint: its own, or that of the schedulers it
    holds."""
    state = callback.state_dict()
    if state or type(callback).__module__.startswith("loopwright."):
        return state
    held = schedulers_of(callback)
    return {KEY: {path: held[path].state_dict() for path in held}} if held else state


class CallbackSchedulers:
    """Loads the states that `state_of` returned; those of missing schedulers wait for
    `on_train_start`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[object, Mapping[str, Any], dict[str, LRScheduler]]] = []

    def load(self, callback: SavedCallback, state: Mapping[str, Any]) -> None:
        """Load a state into a callback, or into the schedulers that it holds now."""
        if KEY not in state:
            callback.load_state_dict(state)
            return
        found = schedulers_of(callback)
        for path, saved in state[KEY].items():
            if path in found:
                found[path].load_state_dict(deepcopy(saved))
        self._waiting.append((callback, state[KEY], found))

    def forget(self) -> None:
        """Drop the states that wait: a new `train` call begins, for which a callback makes new
        schedulers."""
        self._waiting.clear()

    @contextmanager
    def loaded_after(self, optimizers: Iterable[Optimizer]) -> Iterator[list[str]]:
        """Load states into schedulers that callbacks make in this block; yields a list, later of
        those not found."""
        waiting = self._waiting
        self._waiting = []
        lost: list[str] = []
        before = {id(o): [dict(group) for group in o.param_groups] for o in optimizers}
        yield lost
        for callback, states, loaded in waiting:
            found = schedulers_of(callback)
            lost += [f"{type(callback).__name__}.{path}" for path in states if path not in found]
            for path, scheduler in found.items():
                if path in states and scheduler is not loaded.get(path):
                    scheduler.load_state_dict(deepcopy(states[path]))
                    set_hyperparameters(
                        scheduler.optimizer, before.get(id(scheduler.optimizer), ())
                    )


def set_hyperparameters(optimizer: Optimizer, groups: Iterable[Mapping[str, Any]]) -> None:
    """Give the groups of an optimizer these values again, in place."""
    for group, values in zip(optimizer.param_groups, groups, strict=False):
        group.update({name: value for name, value in values.items() if name != "params"})


def unsaved_texts(
    callback: object, components: Components, kinds: tuple[type, ...] = (Optimizer,)
) -> list[str]:
    """Return a line for each model or optimizer of a callback that changes in training and that no
    checkpoint holds; metrics are saved by themselves."""
    saved: set[object] = set(components.optimizers.values())
    saved.update(schedule.scheduler for schedule in components.schedules.values())
    for module in components.modules.values():
        saved.update(module.modules())
    name = type(callback).__name__
    texts = []
    for path, value in attributes_of(callback):
        is_model = isinstance(value, nn.Module) and not isinstance(value, ComputedMetric)
        changes = is_trained(value) if is_model else isinstance(value, kinds)
        if changes and value not in saved:
            texts.append(
                f"Checkpoints do not contain {name}.{path} ({type(value).__name__}), so a resumed "
                f"run would begin with another one: give {name} the methods `state_dict` and "
                "`load_state_dict`, if it changes in training."
            )
    return texts
