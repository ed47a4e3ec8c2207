"""The callbacks that every run has unless the user brought one of the same kind, and the order they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..callback import Callback
from ..optim.build import CurveSchedule
from .checkpoints import BestModel, Checkpoints
from .nonfinite import NonFiniteGuard
from .progress import ProgressDisplay
from .recorder import RunRecorder

if TYPE_CHECKING:
    from ..training.program import Program


def with_defaults(trainer: Program) -> list[Callback]:
    """The user's callbacks, then the defaults that are missing.

    Those that write files treat a failing write as the user's `Checkpoints` do. All of them are called in the order of
    their precedence.
    """
    callbacks = list(trainer.run.callbacks or trainer.callbacks)
    on_error: Literal["raise", "warn"] = "raise"
    for callback in callbacks:
        on_error = callback.on_error if isinstance(callback, Checkpoints) else on_error
    defaults: list[Callback] = [NonFiniteGuard()]
    if trainer.runtime.is_main:
        defaults.append(ProgressDisplay(trainer.run.progress_style))
    if trainer.run_dir is not None:
        if trainer.runtime.is_main:
            defaults.append(RunRecorder(on_error))
        if trainer.run.eval_stream is not None and not _keeps_best(callbacks):
            defaults.append(BestModel(required=False, on_error=on_error))
        defaults.append(Checkpoints())
    callbacks += _for_curves(trainer, callbacks)
    for default in defaults:
        if not any(isinstance(callback, type(default)) for callback in callbacks):
            callbacks.append(default)
    return sorted(callbacks, key=lambda callback: callback.precedence)


def _keeps_best(callbacks: list[Callback]) -> bool:
    from .best import BestCheckpoint  # only runs that could need it pay for it

    return any(isinstance(callback, BestCheckpoint) for callback in callbacks)


def _for_curves(trainer: Program, callbacks: list[Callback]) -> list[Callback]:
    """Callbacks that set the learning rates of schedules that are curves, where there is none yet."""
    curves = [s.scheduler for s in trainer.schedules.values() if isinstance(s.scheduler, CurveSchedule)]
    if not curves:
        return []
    from .scheduling import ScheduleLearningRate

    names = {id(optimizer): name for name, optimizer in trainer.optimizers.items()}
    have = {(id(c.schedule), c.optimizer) for c in callbacks if isinstance(c, ScheduleLearningRate)}
    wanted = [(schedule.curve, names.get(id(schedule.optimizer))) for schedule in curves]
    return [ScheduleLearningRate(c, optimizer=name) for c, name in wanted if (id(c), name) not in have]
