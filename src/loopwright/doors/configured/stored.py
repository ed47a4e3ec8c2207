"""The weights of a run that was trained earlier, for evaluation and prediction."""

from __future__ import annotations

from pathlib import Path

from ...checkpoint.components import load_parts, read_parts
from ...checkpoint.inspect import find_checkpoint, list_checkpoints
from ...errors import CheckpointError
from ...run.reading import best_kept
from ...trainer import Trainer


def load_for_use(trainer: Trainer, run: Path, which: str | Path) -> Path:
    """Load the newest or best checkpoint of a run, or one by its path; a resume point with all that averages."""
    trainer.setup()
    if which == "best":
        path, is_kept = _best(run), True
    else:
        path = find_checkpoint(run if which == "newest" else which)
        is_kept = any(info.kind == "kept" for info in list_checkpoints(path))
    if is_kept:
        load_parts(trainer, read_parts(path), optimizers=False, schedules=False)
    else:
        trainer.load(path)
    return path


def _best(run: Path) -> Path:
    info = best_kept(run)
    if info is None:
        raise CheckpointError(f"{run} has kept no models by a metric: use the newest checkpoint, or name one.")
    return info.path
