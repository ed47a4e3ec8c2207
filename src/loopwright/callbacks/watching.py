"""Watching a metric of the epochs: its value, and which values are better where nothing is measured any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..metrics.direction import WatchedMetric
    from ..trainer import Trainer


def metric_of(metrics: Mapping[str, float], name: str, watcher: str) -> float:
    """The metric that a callback watches, or an error that names the ones there are."""
    if name not in metrics:
        raise ConfigurationError(f"{watcher} watches {name!r}, but this epoch measured only {', '.join(metrics)}.")
    return metrics[name]


def recall_mode(trainer: Trainer, watched: WatchedMetric) -> None:
    """Settle a metric of a finished run by what the run noted when it was trained."""
    if trainer.run is not None and trainer.run.has_run:
        from ..run.reading import RunView

        trainer.directions.said |= RunView(trainer.run.path).metric_modes
    watched.settle(trainer.directions)
