"""The configured interface: describe the run in YAML, write only the loss.

from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig, TrainerResult
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core import TrainerResult
from .trainer import BaseTrainer, BaseTrainerConfig

if TYPE_CHECKING:
    from .experiment import Experiment

__all__ = ["BaseTrainer", "BaseTrainerConfig", "Experiment", "TrainerResult"]

if not TYPE_CHECKING:  # for a type checker, every misspelt name would be there

    def __getattr__(name: str) -> Any:
        """Import `Experiment` at its first use: a trainer that is put together in Python needs no
        YAML."""
        if name != "Experiment":
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; available: {', '.join(__all__)}"
            )
        from .experiment import Experiment

        return Experiment
