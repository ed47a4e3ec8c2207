"""Find the learning rate and the batch size of a run before it begins."""

from .batch_size import BatchSizeScan, Trial, find_batch_size
from .lr_find import LearningRateScan, find_learning_rate

__all__ = ["BatchSizeScan", "LearningRateScan", "Trial", "find_batch_size", "find_learning_rate"]
