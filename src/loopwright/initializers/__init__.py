"""Initial weights or the complete state of a run, from another run or file."""

from ..optim.initialize import (
    FromCheckpoint,
    Initializer,
    LoadReport,
    Resume,
    load_matching,
    read_weights,
)

__all__ = ["FromCheckpoint", "Initializer", "LoadReport", "Resume", "load_matching", "read_weights"]
