"""The reader of `metrics.sqlite`: it changes nothing, reads while others write, and takes files of
any version."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..checkpoint.layout import LARGEST_TEXT
from ..errors import CheckpointError
from ..metrics.best import Mode, first_best
from .curves import Curve, epoch_curve, id_of, read_between, step_curve
from .metrics_records import (
    Changes,
    Cursor,
    Event,
    LogLine,
    MediaItem,
    read_changes,
    read_columns,
    read_cursor,
    read_epochs,
    read_events,
    read_last_step,
    read_latest,
    read_log_lines,
    read_media,
)
from .querying import Answer, run_query
from .schema import exact_value, is_at_rest, open_for_reading

if TYPE_CHECKING:
    import sqlite3

    from .curves import Array

T = TypeVar("T")
PLACES = {"steps": ("step_values", "step"), "epochs": ("epoch_values", "epoch")}
MAX_NAMES = 100_000
PLACE = ("step", "update", "epoch", "samples", "seconds", "wall")


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric: at a step or an epoch (`at`), and at an update."""

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
    """What one run has logged, read when it is asked for; each method sees one consistent state of
    the file.

    Args:
        path: The file; without one, everything is empty.
        keep_open: Keep the file open between calls while no process writes to it. Any thread may
            call.

    >>> import tempfile
    >>> from loopwright.run import MetricsStore, MetricsView, StepRow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = MetricsStore(f"{folder}/metrics.sqlite")
    ...     store.add_steps(StepRow(step, step, 0, step, 0.1, {"loss": 1 / step}) for step in range(1, 5))
    ...     store.close()
    ...     MetricsView(f"{folder}/metrics.sqlite").curve("loss", first=2, last=3).mean
    [0.5, 0.3333333333333333]
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_open: bool = False) -> None:
        self.path = Path(path)
        self.keep_open = keep_open
        self._kept: tuple[sqlite3.Connection, object] | None = None
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return sorted({*self.epoch_names, *self.step_names()})

    def step_names(self) -> list[str]:
        """The names of the metrics of steps, sorted."""
        has_values = "EXISTS (SELECT 1 FROM step_values v WHERE v.name = n.id)"
        query = f"SELECT n.name FROM names n WHERE {has_values}"
        return sorted(
            str(name)
            for (name,) in self._read_named(lambda found: found.execute(query).fetchall()) or ()
        )

    @cached_property
    def epoch_names(self) -> list[str]:
        """The names of the metrics of epochs, in the order they first appeared."""
        return list(dict.fromkeys(name for name, _ in self._epochs))

    def steps(self, name: str) -> list[Point]:
        """The values of a metric at every step that was logged."""
        query = 'SELECT step, "update", value, exact FROM step_values WHERE name = ? ORDER BY step'
        rows = self._read(
            lambda connection: connection.execute(query, (id_of(connection, name),)).fetchall()
        )
        return [point for row in rows or () if (point := _point(*row)) is not None]

    def epochs(self, name: str) -> list[Point]:
        """The values of a metric of the epochs; an epoch that was cut short and went on has its
        last value."""
        return list(self._epochs_by_name.get(name, {}).values())

    def best(self, name: str, mode: Mode) -> BestValue | None:
        """The best value of an epoch metric, the earliest of equals; None where there is none but
        NaN."""
        points = sorted(self.epochs(name), key=lambda point: point.at)
        best = first_best(points, lambda point: point.value, mode)
        return None if best is None else BestValue(name, best.value, best.at, mode)

    def latest(self) -> dict[str, float]:
        """The newest value of every metric; of a metric of steps and epochs, that of the last
        epoch."""
        rows = self._read_named(read_latest) or []
        of_steps = {
            str(name): value for name, *both in rows if (value := exact_value(*both)) is not None
        }
        return of_steps | {name: point.value for name, point in self._epochs}

    def last_step(self) -> tuple[int, int] | None:
        """The newest (step, update) that was logged, found without reading the others."""
        rows = self._read(read_last_step) or ()
        return next((row for row in rows if _are_counts(*row)), None)

    def last_place(self) -> dict[str, Any] | None:
        """The newest row of the clock: step, update, epoch, samples, seconds and wall."""
        rows = self._rows(
            'SELECT step, "update", epoch, samples, seconds, wall FROM clock ORDER BY step DESC '
            "LIMIT 1"
        )
        return dict(zip(PLACE, rows[0], strict=True)) if rows else None

    def last_epoch(self) -> Point | None:
        """Any metric of the newest epoch, for its number and update."""
        return self._epochs[-1][1] if self._epochs else None

    def between(
        self, level: Literal["steps", "epochs"], first: int, end: int
    ) -> dict[str, tuple[Array, Array]]:
        """The places and the values of all metrics from one step or epoch up to another, which is
        not included."""
        table, place = PLACES[level]
        return (
            self._read_named(
                lambda connection: read_between(connection, table, place, (first, end))
            )
            or {}
        )

    def curve(
        self,
        name: str,
        *,
        x: str = "step",
        first: float | None = None,
        last: float | None = None,
        points: int = 1000,
    ) -> Curve:
        """A metric of steps along an axis, in about `points` columns: every value where they fit,
        else summaries.

        Args:
            name: The metric.
            x: step, update, epoch (with the part of it that is over), samples, seconds (of
                training), wall (seconds since 1970), or the name of another metric.
            first: Where the range begins along the axis, which is included; by default the
                beginning.
            last: Where it ends, which is included.
            points: How many columns there may be.
        """
        found = self._read(
            lambda connection: step_curve(connection, name, x, (first, last), points)
        )
        return Curve(name, "step", x, 1, 0, 0, [], [], [], [], [], []) if found is None else found

    def epoch_curve(
        self, name: str, *, x: str = "epoch", first: float | None = None, last: float | None = None
    ) -> Curve:
        """A metric of epochs along an axis, every value; the axes are those of `curve`."""
        found = self._read(lambda connection: epoch_curve(connection, name, x, (first, last)))
        return Curve(name, "epoch", x, 1, 0, 0, [], [], [], [], [], []) if found is None else found

    def columns(self, name: str, level: Literal["step", "epoch"]) -> dict[str, list[Any]]:
        """Every value of a metric, bit for bit, with its place, by the names of the columns."""
        rows = self._read(lambda connection: read_columns(connection, name, level)) or []
        values = [exact_value(value, exact) for *_, value, exact in rows]
        return {key: [row[index] for row in rows] for index, key in enumerate(PLACE)} | {
            "value": values
        }

    def events(self) -> list[Event]:
        """Everything that happened, in order."""
        return self._read(lambda connection: read_events(connection, 0)) or []

    def media(self, name: str | None = None) -> list[MediaItem]:
        """Images, histograms, texts and tables, in the order of steps."""
        where, value = ("id > ?", 0) if name is None else ("name = ?", name)
        return self._read(lambda connection: read_media(connection, where, value)) or []

    def media_item(self, number: int) -> MediaItem | None:
        """The item with an id."""
        items = self._read(lambda connection: read_media(connection, "id = ?", number)) or []
        return items[0] if items else None

    def media_names(self) -> dict[str, str]:
        """The names of all media and the kind of each, sorted."""
        return dict(self._rows("SELECT name, kind FROM media GROUP BY name ORDER BY name"))

    def log_lines(self, last: int = 200) -> list[LogLine]:
        """The last lines of the log, in order."""
        return self._read(lambda connection: read_log_lines(connection, 0, last)) or []

    def cursor(self) -> Cursor:
        """How far the file goes."""
        return self._read(read_cursor) or Cursor()

    def since(
        self, cursor: Cursor, names: Collection[str], *, x: str = "step", points: int = 1000
    ) -> Changes:
        """What was added after a cursor: the values of some metrics, and all else.

        Args:
            cursor: How far the caller has read: that of the last changes, or `Cursor()`.
            names: The metrics.
            x: The axis, as for `curve`.
            points: How many columns a curve may have.
        """
        found = self._read(lambda connection: read_changes(connection, cursor, names, x, points))
        return Changes(Cursor(), cursor != Cursor(), {}, {}, [], [], []) if found is None else found

    def query(self, sql: str) -> Answer:
        """The answer of a SELECT statement over the views that `loopwright query` lists; nothing is
        written."""
        return run_query(self.path, sql)

    def close(self) -> None:
        """Close the file, if it was kept open."""
        with self._lock:
            if self._kept is not None:
                self._kept[0].close()
                self._kept = None

    @cached_property
    def _epochs(self) -> list[tuple[str, Point]]:
        rows = self._read_named(read_epochs) or []
        return [(str(name), point) for *row, name in rows if (point := _point(*row)) is not None]

    @cached_property
    def _epochs_by_name(self) -> dict[str, dict[int, Point]]:
        found: dict[str, dict[int, Point]] = {}
        for name, point in self._epochs:
            found.setdefault(name, {})[point.at] = point
        return found

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._read(lambda connection: connection.execute(query, values).fetchall()) or []

    def _read_named(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """What a function reads that takes time and memory for each name of a metric."""

        def checked(connection: sqlite3.Connection) -> T:
            (count,) = connection.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM names LIMIT {MAX_NAMES + 1})"
            ).fetchone()
            if count > MAX_NAMES:
                raise CheckpointError(
                    f"{self.path} has more than {MAX_NAMES:,} names of metrics, too many to list: "
                    "log fewer names (without numbers of steps in them), or read the file with "
                    "`loopwright query`."
                )
            return read(connection)

        return self._read(checked)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """What a function reads in one transaction; None where the run has not written anything
        yet."""
        with self._lock, self._explained():
            if not self.path.is_file():
                self.close()
                return None
            with self._transaction(self._open()) as connection:
                return read(connection)

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            if self._kept is not None and self._kept[0] is connection:
                connection.rollback()
            else:
                connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            size = (
                f" (texts of more than {LARGEST_TEXT:,} bytes are not read)"
                if "too big" in str(error)
                else ""
            )
            raise CheckpointError(
                f"The metrics in {self.path} cannot be read: {error}{size}. Restore the file, or "
                "copy the run to a folder that is writable."
            ) from error

    def _open(self) -> sqlite3.Connection:
        """A connection; a kept one is that of a file at rest which has not changed since."""
        state = self._state() if self.keep_open else None
        if self._kept is not None and self._kept[1] == state and state is not None:
            return self._kept[0]
        self.close()
        connection = open_for_reading(self.path)
        if state is not None and state == self._state():
            self._kept = connection, state
        return connection

    def _state(self) -> object:
        """What tells a file at rest from any other; None while a process writes to it."""
        found = self.path.stat()
        return (found.st_ino, found.st_size, found.st_mtime_ns) if is_at_rest(self.path) else None


def _point(at: object, update: object, value: object, exact: object) -> Point | None:
    """A row as written by `MetricsStore`; None for what it would not have written."""
    number = exact_value(value, exact)
    return (
        Point(at, update, number)
        if isinstance(at, int) and isinstance(update, int) and number is not None
        else None
    )


def _are_counts(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)
