"""Find the learning rate, the batch size and the fastest settings of a run before it begins."""

from .finders import BatchSizeScan, LearningRateScan, Trial, find_batch_size, find_learning_rate
from .tune import Tuning, TuningRow

__all__ = [
    "BatchSizeScan",
    "LearningRateScan",
    "Trial",
    "Tuning",
    "TuningRow",
    "find_batch_size",
    "find_learning_rate",
]
