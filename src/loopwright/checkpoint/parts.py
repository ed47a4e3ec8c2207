"""Models, optimizers and schedulers alone: from a checkpoint of ours or somebody's `.pt`, into a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..training.state import load_optimizer
from ..training.undo import undone_on_error
from .files import read_checkpoint
from .fitting import compare_components, listed
from .weights import is_safetensors, load_weights, read_pickle, state_dict_in

if TYPE_CHECKING:
    from ..trainer import Trainer


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


def read_parts(path: str | Path) -> Parts:
    """Read a checkpoint directory, or a file of weights with or without `optimizer_state_dict` and the like."""
    source = Path(path)
    if source.is_dir():
        rest = dict(read_checkpoint(source).tree)
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
    problems += compare_components(trainer._components, parts.models, states, schedulers, partly=True)
    if problems:
        raise CheckpointError(f"{parts.path} does not fit this trainer; nothing was loaded:{listed(problems)}")
    with undone_on_error(trainer.run, str(parts.path)) as at:
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
