"""Schedules as pure functions of how far a run is: nothing to save, nothing to step twice."""

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
