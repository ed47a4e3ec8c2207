"""The axes that curves go along: where a step is on the axis, and which steps lie between two
places of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, TypeAlias

from .schema import CLOCK_AT

if TYPE_CHECKING:
    import sqlite3

    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

AXES = ("step", "update", "epoch", "samples", "seconds", "wall")


@dataclass(frozen=True)
class Axis:
    """One of `AXES`, as a file knows it."""

    connection: sqlite3.Connection
    name: str

    def place(self, columns: dict[str, Array]) -> dict[str, Array]:
        """Columns with the place of the middle of their steps; NaN where it is not known."""
        import numpy as np

        if self.name == "update" and not np.isnan(columns["update"]).any():
            return columns | {"x": columns["update"]}
        return columns | {"x": self.of_steps((columns["first"] + columns["last"]) / 2)}

    def of_steps(self, steps: Array) -> Array:
        """The places of steps."""
        import numpy as np

        if self.name == "step" or not len(steps):
            return steps
        if self.name == "epoch" and len(self._epoch_ends) > 1:
            return self._of_epochs(steps)
        query = f'SELECT "{self.name}" FROM ({CLOCK_AT})'
        rows = self.connection.execute(query, (json.dumps(steps.tolist()),)).fetchall()
        return np.array(rows, float).reshape(-1)

    def _of_epochs(self, steps: Array) -> Array:
        """The epochs so far at steps, with the part of the epoch that a step is in."""
        import numpy as np

        ends = self._epoch_ends
        places = np.interp(steps, ends[:, 0], ends[:, 1])
        (last, epoch) = ends[-1]
        before = ends[-2]
        # the epoch that goes on is taken to be as long as the one before
        length = max(last - before[0], 1.0)
        return np.where(steps > last, epoch + np.minimum((steps - last) / length, 1.0), places)

    @cached_property
    def _epoch_ends(self) -> Array:
        """The last step of each epoch and its number, after those of the beginning."""
        import numpy as np

        rows = self.connection.execute(
            "SELECT step, epoch FROM epoch_clock WHERE step IS NOT NULL ORDER BY epoch"
        )
        return np.array([(0, 0), *rows], float)

    def steps_between(
        self, first: float | None, last: float | None, ends: tuple[int, int], key: object
    ) -> tuple[int, int]:
        """The first and the last step of a metric between two places, both included."""
        if self.name == "step":
            start = ends[0] if first is None else ceil(max(first, ends[0]))
            return start, ends[1] if last is None else floor(min(last, ends[1]))
        start = ends[0] if first is None else self._first_step(ends, first, key, is_above=False)
        end = ends[1] if last is None else self._first_step(ends, last, key, is_above=True) - 1
        return start, end

    def _first_step(
        self, ends: tuple[int, int], place: float, key: object, *, is_above: bool
    ) -> int:
        """The first step that is at or above a place, found by bisection: an axis grows along the
        steps."""
        low = ends[0]
        high = ends[1] + 1
        while low < high:
            middle = (low + high) // 2
            found = self._of_step(middle, key)
            if found > place or (found == place and not is_above):
                high = middle
            else:
                low = middle + 1
        return low

    def _of_step(self, step: int, key: object) -> float:
        """The place of a step; that of the first value from there on, where values have one of
        their own."""
        import numpy as np

        if self.name == "update":
            query = (
                'SELECT "update" FROM step_values WHERE name = ? AND step >= ? ORDER BY step '
                "LIMIT 1"
            )
            row = self.connection.execute(query, (key, step)).fetchone()
            return inf if row is None else float(row[0])
        place = float(self.of_steps(np.array([float(step)]))[0])
        return -inf if place != place else place  # before the clock began
