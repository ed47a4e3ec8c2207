"""A run as trackers see it: its name and its settings, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run.settings import settings_of
from .tracker import Setting, TrackedRun

if TYPE_CHECKING:
    from ..callback import Trainer

LONGEST = 500  # characters of a setting


def describe_run(
    trainer: Trainer, *, step: int, epoch: int, folder: Path | None, memory: dict[str, Any]
) -> TrackedRun:
    """The run of a trainer that starts or goes on at a step, with the settings that `run.json`
    would have."""
    facts = trainer._core._facts()
    name = facts.get("name") or (folder.name if folder is not None else "run")
    manifest = {"fingerprint": trainer.run.fingerprint or _components(trainer), **facts}
    config = {key: _plain(value) for key, value in settings_of(manifest, None).items()}
    tags = tuple(facts.get("tags") or ())
    return TrackedRun(name, config, tags, step=step, epoch=epoch, folder=folder, memory=memory)


def _components(trainer: Trainer) -> dict[str, Any]:
    """The settings of a trainer whose program was not described, since it has no run directory."""
    found: dict[str, Any] = {
        name: getattr(trainer, name) for name in ("accumulate", "clip_norm", "clip_value", "seed")
    }
    found["precision"] = trainer.runtime.precision
    for name, model in trainer.models.items():
        found[f"{name}.kind"] = type(model).__qualname__
        found[f"{name}.parameters"] = sum(param.numel() for param in model.parameters())
    for name, optimizer in trainer.optimizers.items():
        found[name] = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        found |= {
            f"{name}.{key}": value for key, value in optimizer.defaults.items() if value is not None
        }
    return found


def _plain(value: object) -> Setting:
    if isinstance(value, str | int | float | bool) or value is None:
        return value[:LONGEST] if isinstance(value, str) else value
    return repr(value)[:LONGEST]
