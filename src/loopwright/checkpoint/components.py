"""Models, optimizers and schedulers alone: from a checkpoint of ours or somebody's `.pt`, into a trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..errors import CheckpointError
from ..metrics.metric_objects import (
    load_metric_states,
    load_object_states,
    metric_states,
    modules_with_metrics,
    object_states,
)
from .fitting import compare_components, listed
from .format import read_checkpoint
from .sharded import place_like
from .tensors import StoredTensor
from .tree import is_dtensor
from .weights import is_safetensors, load_weights, read_pickle, state_dict_in
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
    """Loading gives an optimizer new groups and a new state, and leaves the old ones unchanged."""
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
    return any(_loads_its_own_way(type(module)) or module._load_state_dict_pre_hooks for module in model.modules())


def _loads_its_own_way(kind: type[nn.Module]) -> bool:
    names = ("_load_from_state_dict", "load_state_dict", "set_extra_state")
    is_own = any(getattr(kind, name) is not getattr(nn.Module, name) for name in names)
    return is_own and not kind.__module__.startswith("torch.")


# What people call these entries of a file that they write with `torch.save`.
OPTIMIZER = ("optimizer_state_dict", "optimizer")
SCHEDULER = ("scheduler_state_dict", "lr_scheduler_state_dict", "scheduler", "lr_scheduler")


@dataclass(frozen=True, slots=True)
class Parts:
    """State dicts by the names of the components they belong to, and what else the file holds."""

    path: Path
    models: Mapping[str, Any]
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    schedules: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tree(self) -> dict[str, Any]:
        """All of it, as a checkpoint holds it."""
        return {"models": self.models, "optimizers": self.optimizers, "schedules": self.schedules, **self.rest}


def read_parts(path: str | Path) -> Parts:
    """Read a checkpoint directory, or a file of weights with or without `optimizer_state_dict` and the like."""
    source = Path(path)
    if source.is_dir():
        rest = _table(read_checkpoint(source).tree, source)
        models, optimizers, schedules = (rest.pop(part, {}) for part in ("models", "optimizers", "schedules"))
        return Parts(source, models, optimizers, schedules, rest)
    if is_safetensors(source):
        return Parts(source, {"model": load_weights(source)})
    weights, rest = state_dict_in(read_pickle(source), source)
    optimizer, scheduler = (_first(rest, names) for names in (OPTIMIZER, SCHEDULER))
    return Parts(
        source,
        {"model": weights},
        {} if optimizer is None else {"optimizer": optimizer},
        {} if scheduler is None else {"scheduler": scheduler},
        rest,
    )


def _table(tree: Any, source: Path) -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        raise CheckpointError(f"{source} holds {type(tree).__name__} instead of the state of models and optimizers.")
    return dict(tree)


def _first(entries: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Take the entry out that has the first of these names; None where there is none."""
    found = [name for name in names if entries.get(name) is not None]
    return entries.pop(found[0]) if found else None


def load_parts(trainer: Trainer, parts: Parts, *, optimizers: bool = True, schedules: bool = True) -> None:
    """Put the state into the trainer's components; what the file does not hold stays as it is.

    Everything is compared first: either all of it fits, or nothing is changed.
    """
    states = parts.optimizers if optimizers else {}
    schedulers = parts.schedules if schedules else {}
    models = parts.models if isinstance(parts.models, Mapping) else {}
    problems = [f"the trainer has no model {name!r}" for name in models if name not in trainer.models]
    problems += compare_components(trainer, parts.models, states, schedulers, partly=True)
    if problems:
        raise CheckpointError(f"{parts.path} does not fit this trainer; nothing was loaded:{listed(problems)}")
    with undone_on_error(trainer, str(parts.path)) as at:
        for name, optimizer in trainer.optimizers.items():
            if name in states:
                at.part = f"optimizers: {name}"
                load_optimizer(optimizer, states[name])
        for name, schedule in trainer.schedules.items():
            if name in schedulers:
                at.part = f"schedules: {name}"
                schedule.scheduler.load_state_dict(schedulers[name])
        at.part = "models"
        for name, state in models.items():
            trainer.models[name].load_state_dict(state)


def load_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load weights into a model, of which this process may hold a part only."""
    own = model.state_dict()
    if any(isinstance(v, StoredTensor) for v in saved.values()) or any(map(is_dtensor, own.values())):
        placed = {k: place_like(v, own[k]) if isinstance(own[k], Tensor) else v for k, v in saved.items()}
        model.load_state_dict(placed)
    else:
        model.load_state_dict(saved)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state; torch casts it to the parameters' type, which is undone where the optimizer keeps another."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = _placed(state, params)
    optimizer.load_state_dict(state)
    for index, saved in state["state"].items():
        own = optimizer.state[params[index]]
        for key, value in saved.items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor) and own[key].dtype != value.dtype:
                own[key] = value.to(own[key].device)


def _placed(state: dict[str, Any], params: Sequence[Tensor]) -> dict[str, Any]:
    """The state with its tensors sharded as the parameters are that they belong to."""
    placed = {}
    for index, saved in state["state"].items():
        param = params[index]
        placed[index] = {
            key: place_like(value, param)
            if isinstance(value, StoredTensor) or (isinstance(value, Tensor) and is_dtensor(param))
            else value
            for key, value in saved.items()
        }
    return {**state, "state": placed}
