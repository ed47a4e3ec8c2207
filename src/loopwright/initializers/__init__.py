"""Where a run begins: with weights of another run, or with all of its state."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loading import LoadReport, load_matching, read_weights
    from .starting import FromCheckpoint, Initializer, Resume

__all__ = ["FromCheckpoint", "Initializer", "LoadReport", "Resume", "load_matching", "read_weights"]

_HOMES = {
    "FromCheckpoint": "starting",
    "Initializer": "starting",
    "LoadReport": "loading",
    "Resume": "starting",
    "load_matching": "loading",
    "read_weights": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'loopwright.initializers' has no attribute {name!r}; there is: {', '.join(__all__)}"
        )
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
