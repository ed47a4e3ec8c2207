"""Models, optimizers and schedulers alone: from a checkpoint of ours or somebody's `.pt`, into a
trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from .format import read_checkpoint, write_checkpoint
from .sharded import place_like
from .tensors import StoredTensor
from .tree import is_dtensor
from .weights import is_safetensors, load_weights, read_pickle, state_dict_in

if TYPE_CHECKING:
    pass


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
        return {
            "models": self.models,
            "optimizers": self.optimizers,
            "schedules": self.schedules,
            **self.rest,
        }


def write_parts(
    path: str | Path,
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Any],
    schedules: Mapping[str, Any] | None = None,
    *,
    rest: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write components alone to a checkpoint directory, for `read_parts`; one process can do it.

    Args:
        path: the directory.
        models: the models by name.
        optimizers: the optimizers by name.
        schedules: the schedulers by name.
        rest: further entries of the checkpoint.
        meta: what a listing shows without reading the checkpoint.
    """
    tree = {
        "models": _states(models),
        "optimizers": _states(optimizers),
        "schedules": _states(schedules or {}),
    }
    write_checkpoint(path, {**tree, **(rest or {})}, dict(meta or {}))


def _states(components: Mapping[str, Any]) -> dict[str, Any]:
    return {name: component.state_dict() for name, component in components.items()}


def read_parts(path: str | Path) -> Parts:
    """Read a checkpoint directory, or a file of weights with or without `optimizer_state_dict` and
    the like."""
    source = Path(path)
    if source.is_dir():
        rest = _table(read_checkpoint(source).tree, source)
        models, optimizers, schedules = (
            rest.pop(part, {}) for part in ("models", "optimizers", "schedules")
        )
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
        raise CheckpointError(
            "not-a-trainer-state",
            f"{source} holds {type(tree).__name__} instead of the state of models and optimizers.",
        )
    return dict(tree)


def _first(entries: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Take the entry out that has the first of these names; None where there is none."""
    found = [name for name in names if entries.get(name) is not None]
    return entries.pop(found[0]) if found else None


def load_model(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load weights into a model, of which this process may hold a part only."""
    own = model.state_dict()
    if any(isinstance(v, StoredTensor) for v in saved.values()) or any(
        map(is_dtensor, own.values())
    ):
        placed = {
            k: place_like(v, own[k]) if isinstance(own[k], Tensor) else v for k, v in saved.items()
        }
        model.load_state_dict(placed)
    else:
        model.load_state_dict(saved)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the state; torch casts it to the parameters' type, which is undone where the optimizer
    keeps another."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    state = _placed(state, params)
    optimizer.load_state_dict(state)
    for index, saved in state["state"].items():
        own = optimizer.state[params[index]]
        for key, value in saved.items():
            if (
                isinstance(value, Tensor)
                and isinstance(own.get(key), Tensor)
                and own[key].dtype != value.dtype
            ):
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
