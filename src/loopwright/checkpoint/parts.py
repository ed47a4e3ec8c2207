"""Models, optimizers and schedulers alone: from a checkpoint of ours or somebody's `.pt`, into a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from .capture import compare_groups, compare_model, load_optimizer
from .files import read_checkpoint
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
    wanted = parts.optimizers if optimizers else {}
    problems = [f"the trainer has no model {name!r}" for name in parts.models if name not in trainer.models]
    for name, model in trainer.models.items():
        if name in parts.models:
            problems += [f"{name}: {p}" for p in compare_model(model, parts.models[name])]
    for name, optimizer in trainer.optimizers.items():
        if name in wanted:
            problems += [f"{name}: {p}" for p in compare_groups(optimizer, wanted[name])]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems[:20])
        raise CheckpointError(f"{parts.path} does not fit this trainer; nothing was loaded:{listed}")
    for name, state in parts.models.items():
        trainer.models[name].load_state_dict(state)
    for name, optimizer in trainer.optimizers.items():
        if name in wanted:
            load_optimizer(optimizer, wanted[name])
    for name, schedule in trainer.schedules.items():
        if schedules and name in parts.schedules:
            schedule.scheduler.load_state_dict(parts.schedules[name])
