"""Rows of step metrics: what a training step measured, together with its place in the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from typing import TypeAlias

# update, step, epoch, samples, seconds before the update
Place: TypeAlias = tuple[int, int, int, int, float]


@dataclass(frozen=True, slots=True)
class Note:
    """A line that was printed (of kind "line") or an event, with its time and its place in the
    run."""

    kind: str
    text: str
    wall: float  # seconds since 1970
    place: Place
    detail: Mapping[str, object] = field(default_factory=dict)


class StepValues(dict[str, float]):
    """The metrics of a step by name; called, it gives its numbers, so that a row's `values()` works
    as a dict's."""

    __slots__ = ()

    def __call__(self) -> ValuesView[float]:
        return self.values()


@dataclass(frozen=True, slots=True, eq=False)
class StepRow(Mapping[str, float]):
    """The metrics of one training step, and where in the run it was.

    It is a mapping of its metrics too, as the dicts that `on_log` once gave: `row["loss"]`,
    `row.get("lr")`, `for name in row`, `row.items()`, `row.values()` and `dict(row)` work, and a
    row equals a dict of the same metrics. Two rows are equal where all of their fields are. A row
    cannot be changed: several readers share it.

    Args:
        update: The update that the step is part of, from 1. All steps of an accumulation window
            have the same.
        step: The step, from 1: one batch through `train_step`.
        epoch: The epoch that the step is in, from 0, as `trainer.progress.epoch`.
        samples: Samples seen in the run so far, with this step's, over all processes.
        seconds: Seconds of training so far, without evaluations, at the end of the update; of a
            step that was read before its update was over, at the end of the update before.
        values: The metrics by name.

    >>> from loopwright import StepRow
    >>> row = StepRow(update=1, step=2, epoch=0, samples=16, seconds=0.5, values={"loss": 0.25})
    >>> row.step, row["loss"], dict(row)
    (2, 0.25, {'loss': 0.25})
    """

    update: int
    step: int
    epoch: int
    samples: int
    seconds: float
    values: StepValues

    def __init__(
        self,
        update: int,
        step: int,
        epoch: int,
        samples: int,
        seconds: float,
        values: Mapping[str, float],
    ) -> None:
        _set(self, "update", update)
        _set(self, "step", step)
        _set(self, "epoch", epoch)
        _set(self, "samples", samples)
        _set(self, "seconds", seconds)
        _set(self, "values", values if type(values) is StepValues else StepValues(values))

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StepRow):
            return self._fields == other._fields
        return self.values == other if isinstance(other, Mapping) else NotImplemented

    @property
    def _fields(self) -> tuple[object, ...]:
        return (self.update, self.step, self.epoch, self.samples, self.seconds, self.values)


_set = object.__setattr__


def build_rows(
    places: Sequence[Place], values: Sequence[StepValues], seconds: float
) -> list[StepRow]:
    """Rows from the places and metrics of consecutive steps, read when `seconds` of training had
    passed.

    A place has the seconds before its update, which are the seconds at the end of the update
    before. So the end of an update is known from the first step of the next one, and of the last
    update from `seconds`.
    """
    rows: list[StepRow] = []
    next_update = 0
    next_seconds = seconds
    for (update, step, epoch, samples, before), metrics in zip(
        reversed(places), reversed(values), strict=True
    ):
        if update != next_update and rows:
            seconds = next_seconds
        rows.append(StepRow(update, step, epoch, samples, seconds, metrics))
        next_update = update
        next_seconds = before
    rows.reverse()
    return rows
