"""Rows of steps for tests that need no run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from loopwright.metrics.rows import StepRow


def rows_from(first_step: int, values: Iterable[Mapping[str, float]]) -> list[StepRow]:
    """Rows of consecutive steps, the first of them numbered `first_step`, each an update of one
    sample."""
    return [
        StepRow(step, step, 0, step, step / 8, row)
        for step, row in enumerate(values, start=first_step)
    ]


def rows_of(cells: Iterable[tuple[int, int, str, float]]) -> Iterator[StepRow]:
    """A row for each (update, step, name, value)."""
    return (StepRow(update, step, 0, 0, 0.0, {name: value}) for update, step, name, value in cells)
