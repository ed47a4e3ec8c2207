"""Where a run begins: with weights of another run, or with all of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

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

__getattr__, __dir__ = lazily(__name__, _HOMES)
