"""Callbacks that ship; each imports what it needs only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints import BestModel, Checkpoints
    from .early_stopping import EarlyStopping
    from .ema import EMA
    from .freezing import Freeze, freeze, param_groups, unfreeze
    from .limits import LimitBatches, TimeLimit
    from .logs import GradientNormLog, LearningRateLog, Throughput
    from .nonfinite import NonFiniteGuard
    from .progress import ProgressDisplay
    from .recorder import RunRecorder
    from .rewind import Rewind
    from .summary import ModelSummary, summarize
    from .torchmetrics import TorchMetrics

__all__ = [
    "EMA",
    "BestModel",
    "Checkpoints",
    "EarlyStopping",
    "Freeze",
    "GradientNormLog",
    "LearningRateLog",
    "LimitBatches",
    "ModelSummary",
    "NonFiniteGuard",
    "ProgressDisplay",
    "Rewind",
    "RunRecorder",
    "Throughput",
    "TimeLimit",
    "TorchMetrics",
    "freeze",
    "param_groups",
    "summarize",
    "unfreeze",
]

_HOMES = {
    "BestModel": "checkpoints",
    "Checkpoints": "checkpoints",
    "EMA": "ema",
    "EarlyStopping": "early_stopping",
    "Freeze": "freezing",
    "GradientNormLog": "logs",
    "LearningRateLog": "logs",
    "LimitBatches": "limits",
    "ModelSummary": "summary",
    "NonFiniteGuard": "nonfinite",
    "ProgressDisplay": "progress",
    "Rewind": "rewind",
    "RunRecorder": "recorder",
    "Throughput": "logs",
    "TimeLimit": "limits",
    "TorchMetrics": "torchmetrics",
    "freeze": "freezing",
    "param_groups": "freezing",
    "summarize": "summary",
    "unfreeze": "freezing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loopwright.callbacks' has no attribute {name!r}; there is: {', '.join(__all__)}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
