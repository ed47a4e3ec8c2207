"""Schedules as pure functions of how far a run is: nothing to save, nothing to step twice."""

from .curves import warmup_cosine, warmup_stable_decay
from .extent import Extent
from .shapes import Constant, Cosine, Curve, Linear, MultiStep, Polynomial, Sequential, WarmupCosine

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
