"""The default callbacks of a run, unless the user passed one of the same class, and the order of all callbacks."""

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
    """Return the user's callbacks and the missing defaults, in the order of their precedence.

    Default callbacks that write files treat a failing write as the user's `Checkpoints` does.
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
    from .best import BestCheckpoint  # imported only for runs with evaluation

    return any(isinstance(callback, BestCheckpoint) for callback in callbacks)


def _for_curves(trainer: Program, callbacks: list[Callback]) -> list[Callback]:
    """Return callbacks that set the learning rates of curves, for curves that no callback sets yet."""
    curves = [s.scheduler for s in trainer.schedules.values() if isinstance(s.scheduler, CurveSchedule)]
    if not curves:
        return []
    from .scheduling import ScheduleLearningRate

    names = {id(optimizer): name for name, optimizer in trainer.optimizers.items()}
    have = {(id(c.schedule), c.optimizer) for c in callbacks if isinstance(c, ScheduleLearningRate)}
    wanted = [(schedule.curve, names.get(id(schedule.optimizer))) for schedule in curves]
    return [ScheduleLearningRate(c, optimizer=name) for c, name in wanted if (id(c), name) not in have]
