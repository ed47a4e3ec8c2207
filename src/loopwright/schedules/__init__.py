"""Schedules as pure functions of the completed fraction of a run: they have no state to save and
are never stepped."""

from ..optim.schedules import (
    Constant,
    Cosine,
    Curve,
    Extent,
    Linear,
    MultiStep,
    Polynomial,
    Sequential,
    WarmupCosine,
    warmup_cosine,
    warmup_stable_decay,
)

__all__ = [
    "Constant",
    "Cosine",
    "Curve",
    "Extent",
    "Linear",
    "MultiStep",
    "Polynomial",
    "Sequential",
    "WarmupCosine",
    "warmup_cosine",
    "warmup_stable_decay",
]
