"""Trackers: what a run logs, sent on to TensorBoard, Weights & Biases, MLflow, Trackio, or
files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .files import CSV, JSONL
    from .mlflow import MLflow
    from .tensorboard import TensorBoard
    from .track import Track
    from .tracker import TrackedRow, TrackedRun, Tracker
    from .trackio import Trackio
    from .wandb import WandB

_HOMES = {
    "CSV": "files",
    "JSONL": "files",
    "MLflow": "mlflow",
    "TensorBoard": "tensorboard",
    "Track": "track",
    "TrackedRow": "tracker",
    "TrackedRun": "tracker",
    "Tracker": "tracker",
    "Trackio": "trackio",
    "WandB": "wandb",
}

__all__ = [
    "CSV",
    "JSONL",
    "MLflow",
    "TensorBoard",
    "Track",
    "TrackedRow",
    "TrackedRun",
    "Tracker",
    "Trackio",
    "WandB",
]

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES)
