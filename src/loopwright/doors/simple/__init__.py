"""The simple door: a trainer for whoever has a model, an optimizer, a loss function and loaders.

from loopwright.doors.simple import Trainer
"""

from .trainer import Trainer

__all__ = ["Trainer"]
