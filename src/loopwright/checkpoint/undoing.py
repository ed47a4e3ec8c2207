"""Loading that is undone where part of the state turns out not to fit after all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch_compat import LOADING_METHODS, has_load_hooks
from ..errors import CheckpointError
from ..metrics.metric_objects import (
    load_metric_states,
    load_object_states,
    metric_states,
    modules_with_metrics,
    object_states,
)
from .writer import snapshot

if TYPE_CHECKING:
    from ..callback import Callback
    from ..trainer import Trainer


@dataclass(slots=True)
class Place:
    """How far a load has come, for the error to say."""

    part: str = ""


@contextmanager
def undone_on_error(trainer: Trainer, source: str, callbacks: Iterable[Callback] = ()) -> Iterator[Place]:
    """Put the components of a trainer back as they were if loading them fails, and name the part that failed."""
    place = Place()
    undo = [
        *(_optimizer_undone(optimizer) for optimizer in trainer.optimizers.values()),
        *(_state_undone(schedule.scheduler, deepcopy) for schedule in trainer.schedules.values()),
        *(_state_undone(callback, snapshot) for callback in callbacks),
        *(_state_undone(lane, deepcopy) for lane in trainer.optimization.lanes.values()),
        *(_state_undone(model, snapshot) for model in trainer.models.values() if _may_refuse(model)),
    ]
    measuring = modules_with_metrics(trainer)
    metrics, objects = snapshot(metric_states(measuring)), snapshot(object_states(trainer))
    try:
        yield place
    except Exception as error:  # a user's own load_state_dict fails in any way it likes
        for action in undo:
            action()
        load_metric_states(measuring, [metrics])
        load_object_states(trainer, [objects], is_in_epoch=False)
        raise CheckpointError(
            f"Checkpoint {source} does not fit this trainer, and nothing was loaded: {place.part} failed with "
            f"{type(error).__name__}: {error}"
        ) from error


def _optimizer_undone(optimizer: Optimizer) -> Callable[[], None]:
    """Loading gives an optimizer new groups and a new state; those that it has stay as they are."""
    before = dict(optimizer.__dict__)

    def undo() -> None:
        optimizer.__dict__.clear()
        optimizer.__dict__.update(before)

    return undo


def _state_undone(owner: Any, copied: Callable[[Any], Any]) -> Callable[[], None]:
    state = copied(owner.state_dict())
    return lambda: owner.load_state_dict(state)


def _may_refuse(model: nn.Module) -> bool:
    """Whether a state dict that has the right tensors may still fail: where loading is not torch's own alone.

    Layers without sizes get theirs when they are loaded; there is nothing yet that could be put back.
    """
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        return False
    return any(_loads_its_own_way(type(module)) or has_load_hooks(module) for module in model.modules())


def _loads_its_own_way(kind: type[nn.Module]) -> bool:
    is_own = any(getattr(kind, name) is not getattr(nn.Module, name) for name in LOADING_METHODS)
    return is_own and not kind.__module__.startswith("torch.")
