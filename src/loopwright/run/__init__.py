"""The run directory: its layout and lock, its manifest, the store of its metrics, and runs seen
from outside.

Names are imported when first used: looking at runs does without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from ..metrics.rows import StepRow
    from .best import choose
    from .directory import RunDirectory
    from .frames import Runs, runs
    from .manifest import RunManifest, update_manifest
    from .metrics_store import MetricsStore
    from .metrics_view import Columns, MetricsView
    from .reading import Run, find_runs

__all__ = [
    "Columns",
    "MetricsStore",
    "MetricsView",
    "Run",
    "RunDirectory",
    "RunManifest",
    "Runs",
    "StepRow",
    "choose",
    "find_runs",
    "runs",
    "update_manifest",
]

_HOMES = {
    "Columns": "metrics_view",
    "MetricsStore": "metrics_store",
    "MetricsView": "metrics_view",
    "Run": "reading",
    "RunDirectory": "directory",
    "RunManifest": "manifest",
    "Runs": "frames",
    "StepRow": "metrics_store",
    "choose": "best",
    "find_runs": "reading",
    "runs": "frames",
    "update_manifest": "manifest",
}

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there
    __getattr__, __dir__ = lazily(__name__, _HOMES)
