"""Schedules as pure functions of the number of updates done: nothing to save, nothing to step twice."""

from .curves import warmup_cosine, warmup_stable_decay

__all__ = ["warmup_cosine", "warmup_stable_decay"]
