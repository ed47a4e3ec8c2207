"""Schedulers of a modular run that count epochs: stepped once, by the trainer or by the user's program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError
from ...optim.build import Schedule

if TYPE_CHECKING:
    from .engine import Engine


class EpochSchedulers:
    """Steps schedulers after an epoch, unless the user's loop has, and refuses ones that are then stepped again."""

    def __init__(self, trainer: Engine) -> None:
        self.trainer = trainer
        self._positions: dict[str, Any] = {}  # when the epoch began
        self._left: dict[str, Any] = {}  # where those are that the trainer has stepped

    def note(self) -> None:
        """An epoch begins here."""
        self._positions = {name: _position(schedule) for name, schedule in self.trainer.schedules.items()}
        self._left = {}

    def step(self, row: Mapping[str, float]) -> None:
        """An epoch is over, with these metrics."""
        for name, schedule in self.trainer.schedules.items():
            if schedule.interval == "epoch" and _position(schedule) == self._positions.get(name):
                self._watching(name, schedule, row).step(row)
                self._left[name] = _position(schedule)

    def check(self) -> None:
        """Refuse schedulers that were stepped since, by somebody else."""
        for name, left in self._left.items():
            check_scheduler(self.trainer, self.trainer.schedules[name].scheduler, left)

    def _watching(self, name: str, schedule: Schedule, row: Mapping[str, float]) -> Schedule:
        """The schedule, with the metric that it watches if it does."""
        if not schedule.watches or schedule.metric is not None:
            return schedule
        usual = next((name for name in ("val_loss", "val/loss") if name in row), "loss")
        watched = self.trainer.config.monitor or usual
        if watched not in row:
            raise ConfigurationError(
                f"self.{name} (ReduceLROnPlateau) watches {watched!r}, which this epoch did not measure; there is: "
                f"{', '.join(row) or 'nothing'}. Name one of them with monitor=."
            )
        return replace(schedule, metric=watched)


def check_scheduler(trainer: Engine, scheduler: Any, left_at: int | None) -> None:
    """Refuse a scheduler that goes on by itself after the trainer has stepped it."""
    now = getattr(scheduler, "last_epoch", None)
    if now is None or left_at is None or now <= left_at:
        return
    name = next((name for name, s in trainer.schedules.items() if s.scheduler is scheduler), "scheduler")
    raise ConfigurationError(
        f"Scheduler {name!r} was stepped twice, by the trainer and then by your program (`self.{name}.step()` "
        "in a callback or event). Leave that out, or step it in `training_step` or `training_loop`: what they step, "
        "the trainer does not."
    )


def _position(schedule: Schedule) -> Any:
    """How far a scheduler is, to tell whether the user steps it."""
    return getattr(schedule.scheduler, "last_epoch", None)
