"""Watching a metric of the epochs: its value, or an error where there is none."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError


def metric_of(metrics: Mapping[str, float], name: str, watcher: str) -> float:
    """The metric that a callback watches, or an error that names the ones there are."""
    if name not in metrics:
        raise ConfigurationError(f"{watcher} watches {name!r}, but this epoch measured only {', '.join(metrics)}.")
    return metrics[name]
