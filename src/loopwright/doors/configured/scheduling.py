"""Schedulers around a `train_step` of the user's own: one that the step steps itself is not stepped once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from ...training.step_checks import scheduler_positions
from ...training.update import Lane

if TYPE_CHECKING:
    from .engine import Engine


class OwnScheduling:
    """Lets schedulers follow updates when the step is over, or before the optimizer's next update in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.of_epochs: set[str] = set()  # schedulers that count epochs and that a step has stepped
        self._before: dict[str, list[Any]] = {}  # where schedulers of updates were when the step began
        self._due: dict[str, Lane] = {}
        self._is_in_step = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the user's own, and the update with its total loss."""
        epochs = self._positions_of_epochs()
        self._before = {name: scheduler_positions(lane) for name, lane in self.engine.optimization.lanes.items()}
        self._due, self._is_in_step = {}, True
        try:
            yield
            for lane in list(self._due.values()):
                self._follow(lane)
        finally:
            self._is_in_step = False
        after = self._positions_of_epochs()
        self.of_epochs |= {name for name, position in epochs.items() if after.get(name, position) != position}

    @contextmanager
    def update(self, optimizer: Optimizer | str | None) -> Iterator[None]:
        """An update, which leaves the schedulers of its optimizer to this."""
        lane = self._lane(optimizer) if self._is_in_step else None
        if lane is None or not lane.schedulers:
            yield
            return
        if lane.name in self._due:
            self._follow(lane)
        updates, schedulers, lane.schedulers = lane.updates, lane.schedulers, []
        try:
            yield
        finally:
            lane.schedulers = schedulers
        if lane.updates != updates:
            self._due[lane.name] = lane

    def _lane(self, optimizer: Optimizer | str | None) -> Lane | None:
        lanes = self.engine.optimization.lanes.values()
        return next((lane for lane in lanes if optimizer in (None, lane.name) or optimizer is lane.optimizer), None)

    def _follow(self, lane: Lane) -> None:
        del self._due[lane.name]
        if scheduler_positions(lane) == self._before.get(lane.name):
            lane.schedule()
        self._before[lane.name] = scheduler_positions(lane)

    def _positions_of_epochs(self) -> Mapping[str, Any]:
        schedules = self.engine.schedules.items()
        return {name: getattr(s.scheduler, "last_epoch", None) for name, s in schedules if s.interval == "epoch"}
