"""Initial weights from another run or file."""

from ..optim.initialize import (
    FromCheckpoint,
    Initializer,
    LoadReport,
    load_matching,
)

__all__ = ["FromCheckpoint", "Initializer", "LoadReport", "load_matching"]
