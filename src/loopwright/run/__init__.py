"""The run directory: its layout and lock, its manifest, the store of its metrics, and runs seen from outside.

Names are imported when first used: looking at runs does without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright.run.directory import RunDirectory
    from loopwright.run.manifest import RunManifest, update_manifest
    from loopwright.run.metrics import EpochRow, MetricsStore, StepRow
    from loopwright.run.reading import RunView, find_runs

__all__ = [
    "EpochRow",
    "MetricsStore",
    "RunDirectory",
    "RunManifest",
    "RunView",
    "StepRow",
    "find_runs",
    "update_manifest",
]

_HOMES = {
    "EpochRow": "metrics",
    "MetricsStore": "metrics",
    "RunDirectory": "directory",
    "RunManifest": "manifest",
    "RunView": "reading",
    "StepRow": "metrics",
    "find_runs": "reading",
    "update_manifest": "manifest",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loopwright.run' has no attribute {name!r}; there is: {', '.join(__all__)}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
