"""Loopwright trains PyTorch models: the same run whatever happens to it, in a loop that costs no more than your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .building import Schedule
    from .errors import (
        CheckpointError,
        ConfigurationError,
        DataError,
        Interrupted,
        LoopwrightError,
        MissingExtraError,
        NonFiniteLossError,
    )
    from .history import History
    from .hooks import Callback
    from .progress import Progress
    from .runtime import Mesh, Runtime
    from .runtime.distributed import DistributedRuntime
    from .runtime.launch import launch
    from .step import StepResult
    from .trainer import Trainer

__all__ = [
    "Callback",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DistributedRuntime",
    "History",
    "Interrupted",
    "LoopwrightError",
    "Mesh",
    "MissingExtraError",
    "NonFiniteLossError",
    "Progress",
    "Runtime",
    "Schedule",
    "StepResult",
    "Trainer",
    "__version__",
    "launch",
]

_HOMES = {
    "Callback": "hooks",
    "CheckpointError": "errors",
    "ConfigurationError": "errors",
    "DataError": "errors",
    "DistributedRuntime": "runtime.distributed",
    "History": "history",
    "Interrupted": "errors",
    "LoopwrightError": "errors",
    "Mesh": "runtime",
    "MissingExtraError": "errors",
    "NonFiniteLossError": "errors",
    "Progress": "progress",
    "Runtime": "runtime",
    "Schedule": "building",
    "StepResult": "step",
    "Trainer": "trainer",
    "launch": "runtime.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loopwright' has no attribute {name!r}; there is: {', '.join(__all__)}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
