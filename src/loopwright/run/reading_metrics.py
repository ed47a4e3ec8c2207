"""The metrics of a run as others read them, while it may be writing: no lock is held and no file left behind."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loopwright.errors import CheckpointError
from loopwright.metrics.direction import Mode

if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 10.0
TABLES = {"steps": ("step_metrics", "step"), "epochs": ("epoch_metrics", "epoch")}


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric: at a step or an epoch (`at`), after so many updates."""

    at: int
    update: int
    value: float


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value of an epoch metric and the epoch that measured it."""

    name: str
    value: float
    epoch: int
    mode: Mode


class MetricsView:
    """Series of one run, read when asked for; each question sees one consistent state of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return sorted({*self.epoch_names, *self.step_names()})

    def step_names(self) -> list[str]:
        """The names of the metrics of steps, sorted; every row is looked at."""
        return sorted(str(name) for (name,) in self._rows("SELECT DISTINCT name FROM step_metrics"))

    @cached_property
    def epoch_names(self) -> list[str]:
        """The names of the metrics of epochs, in the order they first appeared."""
        return list(dict.fromkeys(name for name, _ in self._epochs))

    def steps(self, name: str) -> list[Point]:
        """The values of a metric at every step that was logged."""
        query = 'SELECT step, "update", value, exact FROM step_metrics WHERE name = ? ORDER BY rowid'
        return [point for row in self._rows(query, name) if (point := _point(*row)) is not None]

    def epochs(self, name: str) -> list[Point]:
        """The values of a metric of the epochs; an epoch that was cut short and went on has its last value."""
        points = {point.at: point for known, point in self._epochs if known == name}
        return list(points.values())

    def best(self, name: str, mode: Mode) -> BestValue | None:
        """The best value of an epoch metric, the earliest of equals; None where there is none but NaN."""
        points = [point for point in self.epochs(name) if not math.isnan(point.value)]
        if not points:
            return None
        sign = 1 if mode == "min" else -1
        best = min(points, key=lambda point: (sign * point.value, point.at))
        return BestValue(name, best.value, best.at, mode)

    def last_step(self) -> tuple[int, int] | None:
        """The newest (step, update) that was logged, found without reading the others."""
        rows = self._rows('SELECT step, "update" FROM step_metrics ORDER BY rowid DESC LIMIT 1')
        return next((row for row in rows if _are_counts(*row)), None)

    def last_epoch(self) -> Point | None:
        """Any metric of the newest epoch, for its number and update."""
        return self._epochs[-1][1] if self._epochs else None

    def by_place(self, level: Literal["steps", "epochs"]) -> Iterator[tuple[int, dict[str, float]]]:
        """All metrics of one step or epoch after the other, read as they are needed."""
        table, place = TABLES[level]
        rows = self._stream(f'SELECT {place}, "update", value, exact, name FROM {table} ORDER BY rowid')
        points = ((str(name), point) for *row, name in rows if (point := _point(*row)) is not None)
        for at, group in groupby(points, key=lambda item: item[1].at):
            yield at, {name: point.value for name, point in group}

    @cached_property
    def _epochs(self) -> list[tuple[str, Point]]:
        rows = self._rows('SELECT epoch, "update", value, exact, name FROM epoch_metrics ORDER BY rowid')
        return [(str(name), point) for *row, name in rows if (point := _point(*row)) is not None]

    def _rows(self, query: str, *values: object) -> list[Any]:
        return list(self._stream(query, *values))

    def _stream(self, query: str, *values: object) -> Iterator[Any]:
        """What a query gives; nothing where the run has not written its first metric yet."""
        import sqlite3

        if not self.path.is_file():
            return
        try:
            with self._opened() as connection:
                if _has_tables(connection):
                    yield from connection.execute(query, values)
        except sqlite3.Error as error:
            raise CheckpointError(
                f"The metrics in {self.path} cannot be read: {error}. Restore the file, or copy the run to where you "
                "may write."
            ) from error

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        import sqlite3

        log = self.path.with_name(self.path.name + "-wal")
        try:
            connection = self._connect(is_at_rest=not log.exists())
        except sqlite3.DatabaseError:  # a writer may have come since we looked for its log
            connection = self._connect(is_at_rest=False)
        try:
            yield connection
        finally:
            connection.close()

    def _connect(self, *, is_at_rest: bool) -> sqlite3.Connection:
        """The file for reading. SQLite is told when nobody writes to it, or it would make a log and leave it there."""
        import sqlite3

        options = "mode=ro&immutable=1" if is_at_rest else "mode=ro"
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection


_UNPACK = struct.Struct(">d").unpack


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether both tables are there and are tables: a view in their place could be anything."""
    kinds = dict(connection.execute("SELECT name, type FROM sqlite_schema").fetchall())
    return all(kinds.get(table) == "table" for table, _ in TABLES.values())


def _point(at: object, update: object, value: object, exact: object) -> Point | None:
    """A row as written by `MetricsStore`; None for what it would not have written."""
    if isinstance(exact, bytes) and len(exact) == 8:
        value = _UNPACK(exact)[0]
    if isinstance(at, int) and isinstance(update, int) and isinstance(value, int | float):
        return Point(at, update, float(value))
    return None


def _are_counts(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)
