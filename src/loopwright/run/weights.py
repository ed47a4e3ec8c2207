"""The weights that a run has come to: its best kept model, or its newest resume point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..checkpoint.inspect import find_checkpoint, is_checkpoint, list_checkpoints
from ..checkpoint.weights import load_weights as load_stored_weights
from ..errors import CheckpointError, ConfigurationError
from .reading import best_kept

Choice = Literal["any", "best", "newest"]


def load_weights(path: str | os.PathLike[str], *, model: str | None = None, use: Choice = "any") -> dict[str, Tensor]:
    """The tensors of one model: `model.load_state_dict(load_weights("runs/first"))`.

    Of a run directory, the best kept model is taken, or the newest resume point where no model was kept, and a line
    says which; `use` "best" or "newest" asks for one of them. A checkpoint, a kept model and a file of weights are
    taken as they are; the content tells what a file is, whatever its name ends in. `model` says which, where a
    checkpoint holds several. A file of torch's is read with torch's restricted reader, which runs no code.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(
            f"load_weights was given a {type(path).__name__}, and takes a path: write "
            "`model.load_state_dict(load_weights('runs/first'))`."
        )
    source = find_weights(path, use=use)
    if use == "any" and source != Path(path):
        print(f"Weights of {Path(path)}: {_label(source)}.", flush=True)
    return load_stored_weights(source, model=model)


def find_weights(path: str | os.PathLike[str], *, use: Choice = "any") -> Path:
    """The checkpoint or file at a path; of a run, its best kept model or its newest resume point."""
    source = Path(path)
    if not source.is_dir() or is_checkpoint(source):
        return source
    if use not in ("any", "best", "newest"):
        raise ConfigurationError(f"use={use!r}: say 'best', 'newest' or 'any'.")
    best = None if use == "newest" else best_kept(source)
    if best is not None:
        return best.path
    if use == "best":
        raise CheckpointError(f"{source} holds no kept model: train with BestModel, or use='newest'.")
    return find_checkpoint(source)


def _label(checkpoint: Path) -> str:
    """ "the best kept model, update-00000040 (eval_loss 0.31)"."""
    (info,) = list_checkpoints(checkpoint)
    if info.metric is None:
        return f"the newest resume point, {info.name}"
    return f"the best kept model, {info.name} ({info.metric[0]} {info.metric[1]:.4g})"
