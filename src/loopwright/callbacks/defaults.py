"""The callbacks that every run has unless the user brought one of the same kind, and the order they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..hooks import Callback
from .checkpoints import BestModel, Checkpoints
from .nonfinite import NonFiniteGuard
from .progress import ProgressDisplay
from .recorder import RunRecorder

if TYPE_CHECKING:
    from ..trainer import Trainer


def with_defaults(trainer: Trainer) -> list[Callback]:
    """The user's callbacks, then the defaults that are missing.

    Those that write files treat a failing write as the user's `Checkpoints` do. Checkpoints come late, to see what all
    others did, and after them the guard, which may undo all of it.
    """
    callbacks = list(trainer.active_callbacks or trainer.callbacks)
    on_error: Literal["raise", "warn"] = "raise"
    for callback in callbacks:
        on_error = callback.on_error if isinstance(callback, Checkpoints) else on_error
    defaults: list[Callback] = [NonFiniteGuard()]
    if trainer.runtime.is_main:
        defaults.append(ProgressDisplay(trainer.progress_style))
    if trainer.run_dir is not None:
        if trainer.runtime.is_main:
            defaults.append(RunRecorder(on_error))
        if trainer.eval_stream is not None:
            defaults.append(BestModel(required=False, on_error=on_error))
        defaults.append(Checkpoints())
    for default in defaults:
        if not any(isinstance(callback, type(default)) for callback in callbacks):
            callbacks.append(default)
    return sorted(callbacks, key=lambda c: (isinstance(c, NonFiniteGuard), isinstance(c, Checkpoints)))
