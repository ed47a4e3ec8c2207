"""The simple interface: a trainer for users who have a model, an optimizer, a loss function and
loaders.

from loopwright.interfaces.simple import Trainer
"""

from .trainer import Trainer

__all__ = ["Trainer"]
