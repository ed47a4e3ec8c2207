"""Watching a metric of the epochs: its value, its direction, and whether it improved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..errors import ConfigurationError


def resolve_mode(metric: str, mode: str) -> Literal["min", "max"]:
    """Whether smaller or larger values of a metric are better, from its name if nobody says."""
    from ..checkpoint.policy import direction_of

    if mode == "auto":
        return direction_of(metric)
    if mode == "min":
        return "min"
    if mode == "max":
        return "max"
    raise ConfigurationError(f"mode={mode!r}: use 'min', 'max' or 'auto'.")


def metric_of(metrics: Mapping[str, float], name: str, watcher: str) -> float:
    """The metric that a callback watches, or an error that names the ones there are."""
    if name not in metrics:
        raise ConfigurationError(f"{watcher} watches {name!r}, but this epoch measured only {', '.join(metrics)}.")
    return metrics[name]
