"""The modular interface (document 003): `DreamTrainer` for several models and optimizers, with
steps of one's own."""

from .callback import Callback
from .config import DreamTrainerConfig
from .trainer import DreamTrainer

__all__ = ["Callback", "DreamTrainer", "DreamTrainerConfig"]
