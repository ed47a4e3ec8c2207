"""Undo a load that fails in the middle, so that no component is left half restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch_compat import LOADING_METHODS, has_load_hooks
from ..callback import has_users_state
from ..checkpoint.weights import Parts, load_optimizer
from ..checkpoint.writer import snapshot
from ..errors import CheckpointError
from ..metrics.metric_objects import (
    MetricOwners,
    load_metric_states,
    load_object_states,
    metric_states,
    modules_with_metrics,
    object_states,
)
from .held_schedulers import HeldSchedulers, state_of
from .keeper import Keeper
from .program import users_trainer
from .state_mismatch import compare_components, listed

if TYPE_CHECKING:
    from ..callback import Callback
    from ..training.run import TrainingRun


@dataclass(slots=True)
class Place:
    """The part that is being loaded, for the error message."""

    part: str = ""


@contextmanager
def undone_on_error(
    run: TrainingRun, source: str, callbacks: Iterable[Callback] = ()
) -> Iterator[Place]:
    """Restore the previous state of all components if loading fails, and name the part that
    failed."""
    place = Place()
    owner = users_trainer(run.program)
    undo = [
        _attributes_undone([owner] if has_users_state(owner) else []),
        *(_optimizer_undone(optimizer) for optimizer in run.components.optimizers.values()),
        *(
            _state_undone(schedule.scheduler, deepcopy)
            for schedule in run.components.schedules.values()
        ),
        *(_callback_undone(callback) for callback in callbacks),
        *(_state_undone(update, deepcopy) for update in run.updates.by_name.values()),
        *(
            _state_undone(model, snapshot)
            for model in run.components.models.values()
            if _may_refuse(model)
        ),
    ]
    owners = metric_owners(run)
    measuring = modules_with_metrics(owners)
    metrics = snapshot(metric_states(measuring))
    objects = snapshot(object_states(owners))
    try:
        yield place
    except Exception as error:  # any error of a user's own load_state_dict
        for action in undo:
            action()
        load_metric_states(measuring, [metrics])
        load_object_states(owners, [objects], is_in_epoch=False, num_processes=1)
        raise CheckpointError(
            f"Checkpoint {source} does not match this trainer; nothing was loaded: {place.part} "
            f"failed with {type(error).__name__}: {error}"
        ) from error


def metric_owners(run: TrainingRun) -> MetricOwners:
    """The objects whose metrics a checkpoint of this run saves."""
    return MetricOwners.of(run.components.modules, run.program, run.callbacks)


def _optimizer_undone(optimizer: Optimizer) -> Callable[[], None]:
    """Return a function that gives an optimizer its present groups and state again; loading
    replaces both objects."""
    before = dict(optimizer.__dict__)

    def undo() -> None:
        optimizer.__dict__.clear()
        optimizer.__dict__.update(before)

    return undo


def _state_undone(owner: Any, copied: Callable[[Any], Any]) -> Callable[[], None]:
    state = copied(owner.state_dict())
    return lambda: owner.load_state_dict(state)


def _callback_undone(callback: Callback) -> Callable[[], None]:
    if owners := callback._users_objects:
        return _attributes_undone(owners)
    state = snapshot(state_of(callback))
    return lambda: HeldSchedulers().load(callback, state)


def _attributes_undone(owners: Iterable[object]) -> Callable[[], None]:
    """Return a function that puts back the attributes of users' objects, whose `state_dict` may not
    work yet."""
    keeper = Keeper()
    for owner in owners:
        keeper.keep(owner)
    return keeper.restore


def _may_refuse(model: nn.Module) -> bool:
    """Whether loading may fail with the right tensors: if it is not only torch's own
    `load_state_dict`.

    Layers without sizes get theirs when they are loaded; there is nothing yet that could be put
    back.
    """
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        return False
    return any(
        _loads_its_own_way(type(module)) or has_load_hooks(module) for module in model.modules()
    )


def _loads_its_own_way(kind: type[nn.Module]) -> bool:
    is_own = any(getattr(kind, name) is not getattr(nn.Module, name) for name in LOADING_METHODS)
    return is_own and not kind.__module__.startswith("torch.")


def load_parts(
    run: TrainingRun,
    parts: Parts,
    *,
    optimizers: bool = True,
    schedules: bool = True,
    own_state: bool = False,
) -> None:
    """Load the state into the trainer's components; a component without a state in the file is not
    changed.

    With `own_state`, the state of the user's class is loaded too. Everything is compared first:
    either all of it fits, or nothing is changed.
    """
    states = parts.optimizers if optimizers else {}
    schedulers = parts.schedules if schedules else {}
    models = parts.models if isinstance(parts.models, Mapping) else {}
    problems = [
        f"the trainer has no model {name!r}" for name in models if name not in run.components.models
    ]
    problems += compare_components(run.components, parts.models, states, schedulers, partly=True)
    if problems:
        raise CheckpointError(
            f"{parts.path} does not match this trainer; nothing was loaded:{listed(problems)}"
        )
    with undone_on_error(run, str(parts.path)) as at:
        for name, optimizer in run.components.optimizers.items():
            if name in states:
                at.part = f"optimizers: {name}"
                load_optimizer(optimizer, states[name])
        for name, schedule in run.components.schedules.items():
            if name in schedulers:
                at.part = f"schedules: {name}"
                schedule.scheduler.load_state_dict(schedulers[name])
        at.part = "trainer"
        saved = parts.rest.get("trainer")
        source = str(parts.path)
        remarks = run.program._load_users_state(saved, source) if own_state else []
        at.part = "models"
        for name, state in models.items():
            run.components.models[name].load_state_dict(state)
    for line in remarks:
        run.say(line)
