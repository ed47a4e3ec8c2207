"""Every metric of every step and epoch in one SQLite file, which others may read while it is written."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import copysign
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from loopwright.errors import CheckpointError

if TYPE_CHECKING:
    import sqlite3

StepRow: TypeAlias = tuple[int, int, str, float]  # update, step, name, value
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
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._connection: sqlite3.Connection | None = None

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add (update, step, name, value) rows, all or none of them."""
        self._insert("step_metrics", rows)

    def add_epoch(self, epoch: int, update: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of an epoch, all or none of them."""
        self._insert("epoch_metrics", ((epoch, update, name, value) for name, value in metrics.items()))

    def truncate(self, *, step: int, epoch: int) -> None:
        """Remove what came after a position, so that a run resumed there adds each row once.

        Rows are in the order of their steps and epochs, so only those that are removed are looked at.
        """
        with self._explained(), self._open() as connection:
            for table, column, last in (("step_metrics", "step", step), ("epoch_metrics", "epoch", epoch)):
                kept = f"SELECT rowid FROM {table} WHERE {column} <= ? ORDER BY rowid DESC LIMIT 1"
                connection.execute(f"DELETE FROM {table} WHERE rowid > coalesce(({kept}), 0)", (last,))

    def last_step(self) -> int:
        """The last step that there are metrics of; 0 where there are none."""
        found = self._open().execute("SELECT step FROM step_metrics ORDER BY rowid DESC LIMIT 1").fetchone()
        return 0 if found is None else int(found[0])

    def steps(self, name: str | None = None) -> list[StepRow]:
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


def _exactly(row: StepRow) -> tuple[int, int, str, float, bytes | None]:
    value = row[3]
    is_odd = value != value or (value == 0.0 and copysign(1.0, value) < 0)
    return (*row, _PACK(value) if is_odd else None)
