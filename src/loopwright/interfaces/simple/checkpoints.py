"""Checkpoints of the simple interface: loading one, and the files beside it by which other programs
use the model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...callback import has_users_state
from ...errors import CheckpointError
from .kept_models import as_lists, read_run

if TYPE_CHECKING:
    from .engine import Engine

# a checkpoint has its own
WEIGHTS = re.compile(r"(pytorch_)?model[-\w]*\.(safetensors|bin)(\.index\.json)?")
OWN = ("manifest.json", "state.json", "state.safetensors", "pieces.json")


def load(
    engine: Engine, path: str | Path, *, optimizer: bool, scheduler: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Load a checkpoint or a file of weights; returns its content, and the run that `train`
    continues, if any."""
    from ...checkpoint.migrations import complete_state
    from ...checkpoint.weights import read_parts
    from ...training.restore import continue_position, load_parts

    _check_there(Path(path))
    parts = read_parts(path)
    goes_on = optimizer and "progress" in parts.rest and not engine.is_running
    run = read_run(parts, engine if goes_on else None)
    state = complete_state(parts.tree, str(path)) if goes_on else {}
    try:
        load_parts(engine.run, parts, optimizers=optimizer, schedules=scheduler, own_state=goes_on)
    except CheckpointError as error:
        if "optimizers: " not in str(error):
            raise
        raise CheckpointError(
            f"{error}\nTo load only the weights, call load_checkpoint(path, load_optimizer=False)."
        ) from error
    noted = dict(parts.rest.get("simple", {}) if parts.path.is_dir() else parts.rest)
    noted.pop("run", None)
    if goes_on:
        continue_position(engine.run, state)
    rows = run.get("rows", [])
    content = {
        "model_state_dict": parts.models["model"],
        "optimizer_state_dict": parts.optimizers.get("optimizer"),
        "scheduler_state_dict": parts.schedules.get("scheduler"),
        "epoch": None,
        "metric_value": None,
        "num_epochs": len(rows),
        "history": as_lists(rows),
    }
    return content | noted, (run or None) if goes_on else None


def _check_there(path: Path) -> None:
    """Refuse a path that does not exist, and list the files beside it."""
    if path.exists():
        return
    folder = path.parent
    found = (
        sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
        if folder.is_dir()
        else []
    )
    there = (
        f"{folder} contains: {', '.join(found[:8])}"
        if found
        else f"{folder} does not exist or is empty"
    )
    raise CheckpointError(
        f"There is neither a checkpoint nor a file of weights at {path}; {there}. Pass a path "
        "inside the `save_dir` of train, such as best_model or checkpoint_epoch_<n>."
    )


def say_unsaved(interface: object, engine: Engine) -> None:
    """Say once which attributes of a subclass are trained and not in its checkpoints."""
    own = [
        *engine.modules.values(),
        *engine.optimizers.values(),
        *(s.scheduler for s in engine.schedules.values()),
    ]
    kept = {id(one) for one in own}
    names = [
        name
        for name, value in vars(interface).items()
        if id(value) not in kept and _is_trained(value)
    ]
    if names and not (engine.has_said_unsaved or has_users_state(interface)):
        engine.has_said_unsaved = True
        engine.run.say(
            f"Checkpoints do not contain {', '.join(names)}, which {type(interface).__name__} has "
            "in addition to model, optimizer and scheduler: return their states from a "
            "`state_dict` of your class and load them in `load_state_dict`."
        )


def _is_trained(value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(param.requires_grad for param in value.parameters())
    return isinstance(value, (Optimizer, LRScheduler))


def pretrained_files(model: nn.Module) -> dict[str, bytes]:
    """The files that `from_pretrained` needs beside the weights; none for a model without
    `save_pretrained`."""
    if not callable(getattr(model, "save_pretrained", None)):
        return {}
    with TemporaryDirectory() as folder:
        try:
            for part in _transformers_parts(model) or [model]:
                part.save_pretrained(folder)
        except Exception as error:
            error.add_note(
                f"raised in save_pretrained of {type(model).__name__}, for the files that "
                "from_pretrained reads"
            )
            raise
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        return {
            path.name: path.read_bytes()
            for path in files
            if not WEIGHTS.fullmatch(path.name) and path.name not in OWN
        }


def _transformers_parts(model: nn.Module) -> list[Any]:
    """The configs of a model of transformers: all that has to be written besides its weights."""
    module = sys.modules.get("transformers.modeling_utils")
    if module is None or not isinstance(model, module.PreTrainedModel):
        return []
    found = (getattr(model, name, None) for name in ("config", "generation_config"))
    return [part for part in found if part is not None]
