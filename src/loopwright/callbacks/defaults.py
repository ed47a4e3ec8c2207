"""The callbacks that every run has unless the user brought one of the same kind, and the order they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hooks import Callback
from .checkpoints import BestModel, Checkpoints
from .nonfinite import NonFiniteGuard
from .progress import ProgressDisplay
from .recorder import RunRecorder

if TYPE_CHECKING:
    from ..trainer import Trainer


def with_defaults(trainer: Trainer) -> list[Callback]:
    """The user's callbacks, then the defaults that are missing.

    Checkpoints come late, to see what all others did, and after them the guard, which may undo all of it.
    """
    defaults: list[Callback] = [NonFiniteGuard()]
    if trainer.runtime.is_main:
        defaults.append(ProgressDisplay(trainer.progress_style))
    if trainer.run_dir is not None:
        if trainer.runtime.is_main:
            defaults.append(RunRecorder())
        if trainer.eval_stream is not None:
            defaults.append(BestModel(required=False))
        defaults.append(Checkpoints())
    callbacks = list(trainer.active_callbacks or trainer.callbacks)
    for default in defaults:
        if not any(isinstance(callback, type(default)) for callback in callbacks):
            callbacks.append(default)
    return sorted(callbacks, key=lambda c: (isinstance(c, NonFiniteGuard), isinstance(c, Checkpoints)))
