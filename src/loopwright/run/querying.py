"""Users' SQL over a run's metrics: reading only, over views that are documented and ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, ConfigurationError
from .schema import VIEWS, open_for_reading

if TYPE_CHECKING:
    import sqlite3

SHOWN = {  # what users are told of: views, and tables that are as simple as views
    "metrics": "every value of steps",
    "epochs": "every value of epochs",
    "clock": "the steps at which the run logged",
    "events": "what happened",
    "media": "images, histograms, texts and tables",
    "log_lines": "the log",
    "summaries": "values of 8, 64, 512, ... steps in one row",
    "names": "the names of metrics, by their ids in summaries",
}
INSTRUCTIONS = 100_000  # of SQLite, after which a signal such as Ctrl-C is looked for


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows that a query gave, under the names of their columns."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def run_query(path: Path, sql: str) -> Answer:
    """The answer of a query over a file of metrics; an error says which views and columns there
    are.

    Args:
        path: The file; without one the answer is that of a run without metrics.
        sql: One SELECT statement.
    """
    import sqlite3

    with closing(_opened(path)) as connection:
        _prepare(connection)
        try:
            cursor = connection.execute(sql)
            columns = tuple(column[0] for column in cursor.description or ())
            return Answer(columns, cursor.fetchall())
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _explained(connection, error) from error


def _prepare(connection: sqlite3.Connection) -> None:
    """Put our own views before any of the file, and allow nothing but reading."""
    for view, query in VIEWS.items():
        connection.execute(f"CREATE TEMP VIEW {view} AS {query}")
    connection.execute("PRAGMA query_only=ON")
    connection.set_authorizer(_allow_reading)
    connection.set_progress_handler(_look_for_signals, INSTRUCTIONS)


def _allow_reading(action: int, *what: str | None) -> int:
    import sqlite3

    reading = {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_FUNCTION,
    }
    return (
        sqlite3.SQLITE_OK
        if action in reading and "load_extension" not in what
        else sqlite3.SQLITE_DENY
    )


def _look_for_signals() -> int:
    return 0


REFUSALS = (
    "not authorized",
    "prohibited",
    "authorization denied",
    "one statement",
    "cannot modify",
)


def _explained(connection: sqlite3.Connection, error: Exception) -> BaseException:
    if str(error) == "interrupted":
        return KeyboardInterrupt()
    if any(word in str(error) for word in REFUSALS):
        return ConfigurationError(
            "A query can only read: write one SELECT statement. (Only the run writes metrics; to "
            "change a copy of the file, open it with sqlite3.)"
        )
    connection.set_authorizer(None)
    listed = "".join(
        f"\n  {name}({', '.join(columns)})" for name, columns, _ in described(connection)
    )
    return ConfigurationError(f"The query cannot be run: {error}. There are:{listed}")


def described(connection: sqlite3.Connection) -> Iterator[tuple[str, list[str], str]]:
    """The views that a query may ask: name, columns, and what they hold."""
    for name, what in SHOWN.items():
        cursor = connection.execute(f"SELECT * FROM {name} LIMIT 0")
        yield name, [column[0] for column in cursor.description], what


def list_views(path: Path) -> list[tuple[str, list[str], str]]:
    """The views of a file of metrics: name, columns, and what they hold."""
    with closing(_opened(path)) as connection:
        _prepare(connection)
        return list(described(connection))


def _opened(path: Path) -> sqlite3.Connection:
    import sqlite3

    if not path.is_file():
        raise ConfigurationError(f"The run has not logged any metrics yet: there is no {path}.")
    try:
        return open_for_reading(path)
    except sqlite3.Error as error:
        raise CheckpointError(
            f"The metrics in {path} cannot be read: {error}. Restore the file."
        ) from error
