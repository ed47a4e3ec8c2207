"""A run as trackers see it: its name and its settings, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run.changes import flatten
from .tracker import Setting, TrackedRun

if TYPE_CHECKING:
    from ..callback import Trainer

UNTOLD = ("data.samples", "eval_data.samples")  # hashes, which say nothing to a reader
LONGEST = 500  # characters of a setting


def describe_run(trainer: Trainer, *, step: int, epoch: int, folder: Path | None, memory: dict[str, Any]) -> TrackedRun:
    """The run of a trainer that starts or goes on at a step."""
    given: Mapping[str, Any] = getattr(trainer, "_label", {})  # name, tags and config, of trainers that take them
    name = given.get("name") or (folder.name if folder is not None else "run")
    config = {key: value for key, value in _settings(trainer) if key not in UNTOLD}
    for key, value in flatten(given["config"]).items() if given.get("config") else ():
        is_taken = key in config and config[key] != value
        config[f"config.{key}" if is_taken else key] = _plain(value)
    tags = tuple(given.get("tags") or ())
    return TrackedRun(name, config, tags, step=step, epoch=epoch, folder=folder, memory=memory)


def _settings(trainer: Trainer) -> Iterator[tuple[str, Setting]]:
    """The settings under dotted keys: the description of the program, and what that leaves out."""
    run, runtime = trainer.run, trainer.runtime
    yield "device", str(runtime.device)
    yield "processes", runtime.world
    for key in ("epochs", "updates", "samples", "seconds"):
        if (limit := getattr(run.limits, key)) is not None:
            yield f"limit.{key}", limit
    described: Mapping[str, Any] = run.fingerprint or _components(trainer)
    for key, value in described.items():
        yield key, _plain(value)


def _components(trainer: Trainer) -> dict[str, Any]:
    """The settings of a trainer whose program was not described, since it has no run directory."""
    found: dict[str, Any] = {name: getattr(trainer, name) for name in ("accumulate", "clip_norm", "clip_value", "seed")}
    found["precision"] = trainer.runtime.precision
    for name, model in trainer.models.items():
        found[f"{name}.kind"] = type(model).__qualname__
        found[f"{name}.parameters"] = sum(param.numel() for param in model.parameters())
    for name, optimizer in trainer.optimizers.items():
        found[name] = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        found |= {f"{name}.{key}": value for key, value in optimizer.defaults.items() if value is not None}
    return found


def _plain(value: object) -> Setting:
    if isinstance(value, str | int | float | bool) or value is None:
        return value[:LONGEST] if isinstance(value, str) else value
    return repr(value)[:LONGEST]
