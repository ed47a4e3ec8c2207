"""Every metric of every step and epoch in one SQLite file, which other processes may read while it is written."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import copysign
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..errors import CheckpointError
from ..metrics.best import Mode, first_best
from ..metrics.rows import StepRow

if TYPE_CHECKING:
    import sqlite3


StepValue: TypeAlias = tuple[int, int, str, float]  # update, step, name, value
EpochRow: TypeAlias = tuple[int, int, str, float]  # epoch, update, name, value

BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS step_metrics ("update" INTEGER, step INTEGER, name TEXT, value REAL, exact BLOB);
CREATE TABLE IF NOT EXISTS epoch_metrics (epoch INTEGER, "update" INTEGER, name TEXT, value REAL, exact BLOB);
"""


class MetricsStore:
    """Rows of metrics, added in batches and read back bit for bit; the file is opened when first used.

    SQLite has no NaN and no negative zero: such a value has its eight bytes in the column `exact`, and NULL
    or zero in `value`, so plain SQL over `value` does what one expects.

    Args:
        path: The file, as `metrics.sqlite` in a run directory.
        read_only: Read only, and create nothing.

    >>> import pathlib, tempfile
    >>> from loopwright.run import MetricsStore, StepRow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = MetricsStore(pathlib.Path(folder) / "metrics.sqlite")
    ...     store.add_steps([StepRow(update=1, step=1, epoch=0, samples=8, seconds=0.1, values={"loss": 0.5})])
    ...     print(store.steps("loss"))
    ...     store.close()
    [(1, 1, 'loss', 0.5)]
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._connection: sqlite3.Connection | None = None

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the metrics of steps, all or none of them."""
        values = ((row.update, row.step, name, value) for row in rows for name, value in row.values.items())
        self._insert("step_metrics", values)

    def add_epoch(self, epoch: int, update: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of an epoch, all or none of them."""
        self._insert("epoch_metrics", ((epoch, update, name, value) for name, value in metrics.items()))

    def truncate(self, *, step: int, epoch: int) -> None:
        """Remove the rows after a position, so that a run resumed there adds each row once.

        Rows are in the order of their steps and epochs, so only the removed rows are read.
        """
        with self._explained(), self._open() as connection:
            for table, column, last in (("step_metrics", "step", step), ("epoch_metrics", "epoch", epoch)):
                kept = f"SELECT rowid FROM {table} WHERE {column} <= ? ORDER BY rowid DESC LIMIT 1"
                connection.execute(f"DELETE FROM {table} WHERE rowid > coalesce(({kept}), 0)", (last,))

    def last_step(self) -> int:
        """The last step that has metrics; 0 where there are none."""
        found = self._open().execute("SELECT step FROM step_metrics ORDER BY rowid DESC LIMIT 1").fetchone()
        return 0 if found is None else int(found[0])

    def steps(self, name: str | None = None) -> list[StepValue]:
        """The (update, step, name, value) rows of one metric, or of all, in the order they were added."""
        return self._select('SELECT "update", step, name, value, exact FROM step_metrics', name)

    def epochs(self, name: str | None = None) -> list[EpochRow]:
        """The (epoch, update, name, value) rows of one metric, or of all, in the order they were added."""
        return self._select('SELECT epoch, "update", name, value, exact FROM epoch_metrics', name)

    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        query = "SELECT name FROM step_metrics UNION SELECT name FROM epoch_metrics ORDER BY name"
        return [name for (name,) in self._open().execute(query)]

    def sync(self) -> None:
        """Make every row added so far survive a power failure too; a killed process never loses any."""
        log = self.path.with_name(self.path.name + "-wal")
        if self._connection is not None and log.exists():
            descriptor = os.open(log, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close the file; using the store again opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _insert(self, table: str, rows: Iterable[tuple[int, int, str, float]]) -> None:
        plain = [(first, second, name, float(value)) for first, second, name, value in rows]
        with self._explained(), self._open() as connection:
            if any(value == 0.0 or value != value for _, _, _, value in plain):
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", map(_exactly, plain))
            else:  # the usual case, and twice as fast as giving the fifth column each time
                connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, NULL)", plain)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk; anything else is a mistake of the caller
            raise CheckpointError(
                f"The metrics in {self.path} cannot be written: {error}. What was there before is untouched; see to "
                "free space and access."
            ) from error

    def _select(self, query: str, name: str | None) -> list[tuple[int, int, str, float]]:
        condition, values = ("", ()) if name is None else (" WHERE name = ?", (name,))
        rows = self._open().execute(f"{query}{condition} ORDER BY rowid", values)
        return [(a, b, c, value if exact is None else _UNPACK(exact)[0]) for a, b, c, value, exact in rows]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        import sqlite3  # only runs that keep metrics pay for it

        mode = "ro" if self.read_only else "rwc"
        connection = None
        try:
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS, check_same_thread=False
            )
            if not self.read_only:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.executescript(SCHEMA)
            connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise CheckpointError(
                f"The metrics in {self.path} cannot be opened: {error}. Restore the file, or move it away."
            ) from error
        return connection


_UNPACK = struct.Struct(">d").unpack
_PACK = struct.Struct(">d").pack


def _exactly(row: StepValue) -> tuple[int, int, str, float, bytes | None]:
    value = row[3]
    is_odd = value != value or (value == 0.0 and copysign(1.0, value) < 0)
    return (*row, _PACK(value) if is_odd else None)


TABLES = {"steps": ("step_metrics", "step"), "epochs": ("epoch_metrics", "epoch")}


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
    """The metrics of one run, read when they are asked for; each method sees one consistent state of the file."""

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
        points = sorted(self.epochs(name), key=lambda point: point.at)
        best = first_best(points, lambda point: point.value, mode)
        return None if best is None else BestValue(name, best.value, best.at, mode)

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
        """The rows of a query; none where the run has not written its first metric yet."""
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
        """Open the file for reading; as immutable where no process writes to it, or SQLite would leave a log behind."""
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
