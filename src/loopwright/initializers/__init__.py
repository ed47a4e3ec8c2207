"""Where a run begins: with weights of another run, or with all of its state."""

from ..optim.initialize import FromCheckpoint, Initializer, LoadReport, Resume, load_matching, read_weights

__all__ = ["FromCheckpoint", "Initializer", "LoadReport", "Resume", "load_matching", "read_weights"]
