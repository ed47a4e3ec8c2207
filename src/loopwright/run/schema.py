"""The tables of `metrics.sqlite`, the views for users' SQL, and how files of any version are
opened."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from ..checkpoint.layout import LARGEST_TEXT
from ..errors import CheckpointError

if TYPE_CHECKING:
    import sqlite3  # at runtime where it is used: the first step of a run does not wait for it

File: TypeAlias = "sqlite3.Connection"
Level: TypeAlias = Literal["step", "epoch"]  # of metrics
RestState: TypeAlias = tuple[int, int, int]
T = TypeVar("T")

VERSION = 2  # of the file, in `PRAGMA user_version`; the first edition wrote 0
LEVELS = (1, 2, 3, 4, 5, 6)  # of summaries: a bucket of level L has the values of 8**L steps
BUSY_SECONDS = 10.0
AXES = ("step", "update", "epoch", "samples", "seconds", "wall")  # that curves go along

_PLACE = '"update" INTEGER, step INTEGER, epoch INTEGER, samples INTEGER, seconds REAL, wall REAL'
TABLES = {
    "names": "(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "step_values": '(name INTEGER, step INTEGER, "update" INTEGER, value REAL, exact BLOB, '
    "PRIMARY KEY (name, step)) WITHOUT ROWID",
    "epoch_values": '(name INTEGER, epoch INTEGER, "update" INTEGER, value REAL, exact BLOB, '
    "PRIMARY KEY (name, epoch)) WITHOUT ROWID",
    "summaries": "(name INTEGER, level INTEGER, bucket INTEGER, first_step INTEGER, last_step INTEGER, "
    "count INTEGER, nonfinite INTEGER, min REAL, max REAL, total REAL, PRIMARY KEY (name, "
    "level, bucket)) WITHOUT ROWID",
    "clock": '(step INTEGER PRIMARY KEY, "update" INTEGER, epoch INTEGER, samples INTEGER, seconds '
    "REAL, wall REAL)",
    "epoch_clock": '(epoch INTEGER PRIMARY KEY, "update" INTEGER, step INTEGER, samples INTEGER, seconds REAL, '
    "wall REAL)",
    "events": "(id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, text TEXT, detail TEXT, "
    f"{_PLACE})",
    "media": "(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, kind TEXT NOT NULL, "
    f"{_PLACE}, position INTEGER, file TEXT, content TEXT, caption TEXT, UNIQUE (name, "
    "step, position))",
    "log_lines": "(id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL, level TEXT, text TEXT)",
    "facts": "(key TEXT PRIMARY KEY, value)",
}


def _between(column: str, *, is_whole: bool = False) -> str:
    """A column of the clock at a step: between two log points in proportion."""
    proportion = (
        f"a.{column} + (b.{column} - a.{column}) * 1.0 * (v.step - a.step) / (b.step - a.step)"
    )
    value = f"CAST(round({proportion}) AS INTEGER)" if is_whole else proportion
    return (
        f"CASE WHEN a.step IS NULL OR b.step = v.step THEN b.{column} ELSE {value} END AS {column}"
    )


_AROUND = """
LEFT JOIN clock a ON a.step = (SELECT max(step) FROM clock WHERE step < v.step)
LEFT JOIN clock b ON b.step = (SELECT min(step) FROM clock WHERE step >= v.step)"""
_MEASURED = f"""b.epoch AS epoch,
  {_between("samples", is_whole=True)}, {_between("seconds")}, {_between("wall")}"""
CLOCK_AT = f"""
SELECT v.step AS step, {_between('"update"')}, {_MEASURED} FROM (SELECT value AS step FROM json_each(?)) v {_AROUND}"""
WITH_PLACE: dict[Level, str] = {  # the values of a metric with their places
    "step": f"""
SELECT v.step AS step, v."update" AS "update", {_MEASURED}, v.value, v.exact
FROM step_values v {_AROUND} WHERE v.name = ? ORDER BY v.step""",
    "epoch": """
SELECT c.step, v."update", v.epoch, c.samples, c.seconds, c.wall, v.value, v.exact
FROM epoch_values v LEFT JOIN epoch_clock c ON c.epoch = v.epoch WHERE v.name = ? ORDER BY v.epoch""",
}

VIEWS = {
    "metrics": f"""
SELECT n.name AS name, v.step AS step, v."update" AS "update", {_MEASURED}, v.value AS value
FROM names n CROSS JOIN step_values v ON v.name = n.id {_AROUND}""",
    "epochs": """
SELECT n.name AS name, v.epoch AS epoch, v."update" AS "update", c.step AS step, c.samples AS samples,
  c.seconds AS seconds, c.wall AS wall, v.value AS value
FROM names n CROSS JOIN epoch_values v ON v.name = n.id LEFT JOIN epoch_clock c ON c.epoch = v.epoch""",
}
OLD_TABLES = ("step_metrics", "epoch_metrics")  # of version 0

# A cross join is one in the order in which it is written: by names first, of which there are few.
# Values that are not NaN and not infinite: the literal is infinite, and a comparison with NULL is
# not true.
_FINITE = "abs(value) < 9e999"
SUMMARIES_OF_VALUES = f"""
INSERT OR REPLACE INTO summaries
SELECT v.name, 1, v.step >> 3, min(v.step), max(v.step), count(*), count(*) - count(CASE WHEN {_FINITE} THEN 1 END),
  min(v.value), max(v.value), total(CASE WHEN {_FINITE} THEN v.value END)
FROM names n CROSS JOIN step_values v ON v.name = n.id AND v.step BETWEEN ? AND ? GROUP BY v.name, v.step >> 3"""
SUMMARIES_OF_SUMMARIES = """
INSERT OR REPLACE INTO summaries
SELECT s.name, s.level + 1, s.bucket >> 3, min(s.first_step), max(s.last_step), sum(s.count), sum(s.nonfinite),
  min(s.min), max(s.max), total(s.total)
FROM names n CROSS JOIN summaries s ON s.name = n.id AND s.level = ? AND s.bucket BETWEEN ? AND ?
GROUP BY s.name, s.bucket >> 3"""


def summarize(connection: File, first: int, last: int) -> None:
    """Compute the summaries of every bucket that has a step from `first` to `last`, each level from
    the one below."""
    connection.execute(SUMMARIES_OF_VALUES, (first >> 3 << 3, (last >> 3 << 3) + 7))
    for level in LEVELS[:-1]:
        buckets = first >> 3 * (level + 1) << 3, (last >> 3 * (level + 1) << 3) + 7
        connection.execute(SUMMARIES_OF_SUMMARIES, (level, *buckets))


def open_for_writing(path: Path) -> File:
    """Open or create a file; one of the first edition is brought to today's version, all of it or
    nothing."""
    import sqlite3

    connection = None
    try:
        connection = _connect_to(path.as_uri() + "?mode=rwc")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if version_of(connection, path) != VERSION:
            _create(connection)
        connection.execute("COMMIT")
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise metrics_error(path, "opened", error) from error
        raise
    return connection


def metrics_error(path: Path, action: str, error: Exception) -> CheckpointError:
    """The error about a file that SQLite cannot open or read."""
    size = f" (texts of more than {LARGEST_TEXT:,} bytes are not read)"
    return CheckpointError(
        "metrics-unreadable",
        f"The metrics in {path} cannot be {action}: {error}"
        f"{size if 'too big' in str(error) else ''}. Restore the file, move it away, or copy the "
        "run to a folder that is writable.",
    )


def _connect_to(uri: str) -> File:
    import sqlite3

    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
    )


def version_of(connection: File, path: Path) -> int:
    """The version of a file; 0 of a file without tables too. An error for a version that is not
    known."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, VERSION):
        raise CheckpointError(
            "metrics-version",
            f"The metrics in {path} have version {version} of the file format; this version of "
            f"Loopwright reads the versions 0 and {VERSION}. Install the version that wrote the "
            "file, or a newer one.",
        )
    return version


def _create(connection: File) -> None:
    is_old = has_tables(connection, OLD_TABLES)
    _create_tables(connection, "TABLE")
    for view, query in VIEWS.items():
        connection.execute(f"CREATE VIEW {view} AS {query}")
    if is_old:
        _copy_old_rows(connection)
        for table in OLD_TABLES:
            connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _create_tables(connection: File, kind: str) -> None:
    for table, columns in TABLES.items():
        connection.execute(f"CREATE {kind} {table} {columns}")
    connection.execute("INSERT INTO facts VALUES ('generation', 0)")


def _copy_old_rows(connection: File) -> None:
    """Copy the rows of version 0, which had neither a clock nor anything but numbers, to today's
    tables."""
    connection.execute(
        "INSERT INTO names (name) SELECT name FROM (SELECT name, 0 AS part, min(rowid) AS at FROM "
        "main.step_metrics GROUP BY name UNION ALL SELECT name, 1, min(rowid) FROM "
        "main.epoch_metrics GROUP BY name) WHERE typeof(name) = 'text' GROUP BY name ORDER BY "
        "min(part), min(at)"
    )
    for level in ("step", "epoch"):
        connection.execute(
            f'INSERT OR REPLACE INTO {level}_values SELECT n.id, {level}, "update", value, exact '
            f"FROM main.{level}_metrics o JOIN names n ON n.name = o.name "
            f"WHERE typeof({level}) = 'integer' AND typeof(\"update\") = 'integer' "
            "AND (typeof(value) IN ('real', 'integer') OR length(exact) = 8) ORDER BY o.rowid"
        )
    connection.execute(
        'INSERT INTO clock (step, "update") SELECT max(step), "update" FROM step_values GROUP BY '
        "step >> 9"
    )
    connection.execute(
        'INSERT INTO epoch_clock (epoch, "update", step) SELECT epoch, "update", step FROM '
        '(SELECT epoch, max("update") AS "update" FROM epoch_values GROUP BY epoch) '
        'LEFT JOIN (SELECT "update", max(step) AS step FROM step_values GROUP BY "update") '
        'USING ("update")'
    )
    first, last = connection.execute("SELECT min(step), max(step) FROM step_values").fetchone()
    if first is not None:
        summarize(connection, first, last)


def read_consistently(path: Path, read: Callable[[RestState | None], T]) -> T:
    """What `read` returns, given the state of a file at rest, for `open_for_reading`, or None.

    Such a file is read without locks. Where a process has begun to write it meanwhile, what was
    read may be wrong, and it is read again.
    """
    while True:
        state = state_at_rest(path)
        try:
            found = read(state)
        except Exception:
            if state == state_at_rest(path):
                raise
        else:
            if state is None or state == state_at_rest(path):
                return found


def open_for_reading(path: Path, state: RestState | None = None) -> File:
    """Open a file without changing it; the tables of today can be asked whatever its version is.

    Args:
        path: The file.
        state: That of a file at rest, which is opened as immutable, or SQLite would leave a log
            behind; see `read_consistently`.
    """
    import sqlite3

    options = "?mode=ro" if state is None else "?mode=ro&immutable=1"
    connection = _connect_to(path.absolute().as_uri() + options)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_TEXT)  # a text may have gigabytes
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA temp_store=MEMORY")
        is_of_today = version_of(connection, path) == VERSION and has_tables(connection, TABLES)
        if not is_of_today:  # temporary tables stand for those that the file lacks
            _create_tables(connection, "TEMP TABLE")
            if has_tables(connection, OLD_TABLES):
                _copy_old_rows(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_empty() -> File:
    """A file in memory without rows, for a run that has not written any."""
    connection = _connect_to(":memory:")
    _create_tables(connection, "TABLE")
    return connection


def state_at_rest(path: Path) -> RestState | None:
    """What tells a file to which no process writes from a later one; None of any other file.

    At rest there is no log of SQLite beside the file, or an empty one that was left over.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    state = (found.st_ino, found.st_size, found.st_mtime_ns)
    try:
        log = path.with_name(path.name + "-wal").stat()
    except FileNotFoundError:
        return state
    return state if log.st_size == 0 else None


def has_tables(connection: File, tables: object) -> bool:
    """Whether the tables are in the file and are tables: a view in the place of one could be
    anything."""
    kinds = dict(connection.execute("SELECT name, type FROM main.sqlite_schema").fetchall())
    return all(kinds.get(table) == "table" for table in tables)  # type: ignore[attr-defined]


def id_of(connection: File, name: str) -> object:
    """The id of a metric in the file; of one that is not there, an id that nothing has."""
    found = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
    return -1 if found is None else found[0]


_EXACT = struct.Struct(">d")


def exact_bytes(value: float) -> bytes | None:
    """The eight bytes of a value that SQLite cannot hold: NaN, and negative zero."""
    if value != value:
        return _EXACT.pack(value)
    return NEGATIVE_ZERO if value == 0.0 and _EXACT.pack(value) == NEGATIVE_ZERO else None


NEGATIVE_ZERO = _EXACT.pack(-0.0)


def exact_value(value: object, exact: object) -> float | None:
    """A value as it was written; None for what `MetricsStore` would not have written."""
    if isinstance(exact, bytes) and len(exact) == 8:
        return float(_EXACT.unpack(exact)[0])
    return float(value) if isinstance(value, int | float) else None
