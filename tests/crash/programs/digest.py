"""A hash over everything that two runs must have in common, part by part, so that a difference has
a name."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loopwright.checkpoint import list_checkpoints, read_checkpoint
from loopwright.run import MetricsStore
from loopwright.trainer import Trainer
from loopwright.training.state import capture
from tests.runs import epochs_of, steps_of

CLOCK = (
    "seconds",
    "call",
    "call_epoch",
    "call_update",
    "call_sample",
    "call_seconds",
    "call_finished",
)


def digest_of(value: Any) -> str:
    """The same for two values exactly if they are equal to the last bit and of the same types."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()[:16]


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous()
        found.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        found.update(
            value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        )
    elif isinstance(value, np.ndarray):
        _feed(found, torch.from_numpy(value))
    elif isinstance(value, Mapping):
        found.update(f"dict {len(value)} ".encode())
        for key, entry in value.items():
            _feed(found, key)
            _feed(found, entry)
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)} ".encode())
        for entry in value:
            _feed(found, entry)
    elif isinstance(value, float):
        found.update(b"float " + struct.pack(">d", value))
    else:
        found.update(f"{type(value).__name__} {value!r} ".encode())


def parts_of(core: Trainer) -> dict[str, Any]:
    """The state of a trainer without the time it took, and without which call of `train` it was
    taken in."""
    state = capture(core.run)
    state["progress"] = {
        name: value for name, value in state["progress"].items() if name not in CLOCK
    }
    state["callbacks"] = {name: own for name, own in state["callbacks"].items() if own}
    state["callback_versions"] = {
        name: state["callback_versions"][name] for name in state["callbacks"]
    }
    state["rng"] = core.run.generators.state()
    return state


def kept_in(directory: Path) -> dict[str, Any]:
    """The kept models of a run directory: names, metadata and weights."""
    found = [info for info in list_checkpoints(directory) if info.kind == "kept"]
    return {info.name: [info.meta, read_checkpoint(info.path).tree] for info in found}


def rows_in(directory: Path) -> list[Any]:
    """Every row of the metrics store."""
    store = MetricsStore(directory / "metrics.sqlite")
    try:
        return [steps_of(store), epochs_of(store)]
    finally:
        store.close()
