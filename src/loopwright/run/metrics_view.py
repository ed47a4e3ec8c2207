"""The reader of `metrics.sqlite`: it changes nothing, reads while others write, and takes files of
any version.

Curves are imported when they are asked for, with numpy.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from ..errors import CheckpointError, ConfigurationError, MissingExtraError
from ..metrics.best import Mode
from ..text import nearest
from .files import MAX_NAMES
from .schema import (
    AXES,
    VIEWS,
    WITH_PLACE,
    File,
    Level,
    RestState,
    exact_value,
    id_of,
    metrics_error,
    open_empty,
    open_for_reading,
    read_consistently,
)

if TYPE_CHECKING:
    import pandas

    from .curves import Array, MetricCurve

T = TypeVar("T")
CURSOR = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){5}")
MOST_LINES = 1000  # of the log, that are given at once
# what users' SQL may ask: views, and tables that are as simple as views
QUERIED = ("metrics", "epochs", "clock", "events", "media", "log_lines", "summaries", "names")
INSTRUCTIONS = 100_000  # of SQLite, after which a signal such as Ctrl-C is looked for


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric: at a step or an epoch (`at`), and at an update."""

    at: int
    update: int
    value: float


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value of an epoch metric and the epoch that measured it.

    Where it is not known whether smaller or larger values are better, `Run.headline` gives the last
    value, without a mode.
    """

    name: str
    value: float
    epoch: int
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run; what is not known of its place is None."""

    id: int
    kind: str
    text: str
    detail: dict[str, Any]
    update: int | None
    step: int | None
    epoch: int | None
    samples: int | None
    seconds: float | None
    wall: float | None


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An image, which has a file below the run directory, or a histogram, a text or a table, which
    have a content."""

    id: int
    name: str
    kind: str
    update: int | None
    step: int | None
    epoch: int | None
    samples: int | None
    seconds: float | None
    wall: float | None
    position: int
    file: str | None
    content: Any
    caption: str | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a run's log."""

    id: int
    wall: float
    level: str
    text: str


class MetricsCursor(NamedTuple):
    """How far a reader has read; as text, for an address.

    >>> from loopwright.run.metrics_view import MetricsCursor
    >>> str(MetricsCursor(step=7)), MetricsCursor.parse("0.7.0.0.0.0") == MetricsCursor(step=7)
    ('0.7.0.0.0.0', True)
    """

    generation: int = 0
    step: int = 0
    epoch: int = 0
    event: int = 0
    media: int = 0
    log_line: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> MetricsCursor:
        """The cursor of a text; a ValueError for any other text."""
        if not CURSOR.fullmatch(text):
            raise ValueError(
                f"{text!r} is not a cursor: expected six whole numbers separated by points."
            )
        return cls(*map(int, text.split(".")))


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new since a cursor. Where `is_reset`, rows were removed or replaced, and this is all
    there is."""

    cursor: MetricsCursor
    is_reset: bool
    steps: dict[str, MetricCurve]
    epochs: dict[str, MetricCurve]
    events: list[Event]
    media: list[MediaItem]
    log_lines: list[LogLine]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows that a query gave, under the names of their columns."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Columns(dict[str, list[Any]]):
    """A table as a dict of lists of one length, by the names of the columns.

    >>> from loopwright.run import Columns
    >>> Columns({"step": [1, 2], "value": [0.5, 0.25]})["value"]
    [0.5, 0.25]
    """

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a frame of pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "frames-extra",
                "A pandas frame needs pandas: pip install 'loopwright[frames]'.",
            ) from error
        return pandas.DataFrame(self)


class MetricsView:
    """What one run has logged, read when it is asked for; each method sees one consistent state of
    the file. `view("loss")` has every value of a metric.

    Args:
        path: The file, which is open during a call, or in a `with` block of the view; without one,
            everything is empty.

    >>> import tempfile
    >>> from loopwright.run import MetricsStore, MetricsView, StepRow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = MetricsStore(f"{folder}/metrics.sqlite")
    ...     store.add_steps(StepRow(step, step, 0, step, 0.1, {"loss": 1 / step}) for step in range(1, 5))
    ...     store.close()
    ...     MetricsView(f"{folder}/metrics.sqlite").curve("loss", first=2, last=3).mean
    [0.5, 0.3333333333333333]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._is_kept = False  # in a `with` block
        # the file while it is open, whether there was one, and its state
        self._kept: tuple[File, tuple[bool, RestState | None]] | None = None

    def __enter__(self) -> Self:
        self._is_kept = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_kept = False
        self._close()

    # Metrics

    def __call__(self, name: str, *, by: Level | None = None) -> Columns:
        """Every value of a metric, bit for bit, and where in the run it was measured.

        Args:
            name: The metric.
            by: "step" for the values of steps, "epoch" for those of epochs; by default those of
                steps if there are any.

        Returns:
            The columns step, update, epoch, samples, seconds (of training), wall (seconds since
            1970) and value. What is not known is None, as times of runs of the first edition.
        """
        levels: tuple[Level, ...] = ("step", "epoch") if by is None else (by,)
        for level in levels:
            columns = self.columns(name, level)
            if columns["value"]:
                return columns
        raise self.missing(name, by)

    def missing(self, name: str, by: str | None = None) -> ConfigurationError:
        """The error about a metric that the run does not have, `by` step or epoch."""
        known = self.names_of("epoch") if by == "epoch" else self.names()
        where = f" per {by}" if by else ""
        return ConfigurationError(
            "unknown-metric",
            f"{self.path.parent} has no metric {name!r}{where}: {nearest(name, known)}",
        )

    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return sorted({*self.names_of("step"), *self.names_of("epoch")})

    def names_of(self, level: Level) -> list[str]:
        """The names of the metrics of steps, or of epochs, sorted."""
        has_values = f"EXISTS (SELECT 1 FROM {level}_values v WHERE v.name = n.id)"
        query = f"SELECT n.name FROM names n WHERE {has_values}"
        rows = self._read(lambda file: file.execute(query).fetchall())
        return sorted(str(name) for (name,) in rows)

    def rows(self, level: Level, name: str | None = None) -> list[tuple[str, Point]]:
        """The values of one metric of steps or epochs with its name, or of all, in order."""
        where, given = ("", ()) if name is None else ("WHERE n.name = ?", (name,))
        query = (
            f'SELECT n.name, v.{level}, v."update", v.value, v.exact FROM {level}_values v '
            f"JOIN names n ON n.id = v.name {where} ORDER BY v.{level}, v.name"
        )
        rows = self._read(lambda file: file.execute(query, given).fetchall())
        return [(str(key), point) for key, *row in rows if (point := _point(*row)) is not None]

    def steps(self, name: str) -> list[Point]:
        """The values of a metric at every step that was logged."""
        return [point for _, point in self.rows("step", name)]

    def epochs(self, name: str) -> list[Point]:
        """The values of a metric of the epochs; an epoch that was cut short and went on has its
        last value."""
        return list(self._epochs_by_name.get(name, {}).values())

    def latest(self) -> dict[str, float]:
        """The newest value of every metric; of a metric of steps and epochs, that of the last
        epoch."""
        query = (
            "SELECT n.name, v.value, v.exact FROM names n CROSS JOIN step_values v ON "
            "v.name = n.id AND v.step = (SELECT max(step) FROM step_values WHERE name = n.id)"
        )
        rows = self._read(lambda file: file.execute(query).fetchall())
        values = {str(name): exact_value(value, exact) for name, value, exact in rows}
        of_steps = {name: value for name, value in values.items() if value is not None}
        return of_steps | {name: point.value for name, point in self._epochs}

    def last_step(self) -> tuple[int, int] | None:
        """The newest (step, update) that was logged, found without reading the others."""
        row = self._read(_last_step)
        if row is None or not all(isinstance(value, int) for value in row):
            return None
        return row

    def last_place(self) -> dict[str, Any] | None:
        """The newest row of the clock: step, update, epoch, samples, seconds and wall."""
        columns = ", ".join(f'"{axis}"' for axis in AXES)
        query = f"SELECT {columns} FROM clock ORDER BY step DESC LIMIT 1"
        row = self._read(lambda file: file.execute(query).fetchone())
        return None if row is None else dict(zip(AXES, row, strict=True))

    def last_epoch(self) -> Point | None:
        """Any metric of the newest epoch, for its number and update."""
        return self._epochs[-1][1] if self._epochs else None

    def between(self, level: Level, first: int, end: int) -> dict[str, tuple[Array, Array]]:
        """The places and the values of all metrics from one step or epoch up to another, which is
        not included."""
        from .curves import read_between

        return self._read(lambda file: read_between(file, level, (first, end)))

    def columns(self, name: str, level: Level) -> Columns:
        """Every value of a metric, bit for bit, with its place; empty columns where it has none."""
        query = WITH_PLACE[level]
        rows = self._read(lambda file: file.execute(query, (id_of(file, name),)).fetchall())
        places = {axis: [row[index] for row in rows] for index, axis in enumerate(AXES)}
        return Columns(places | {"value": [exact_value(*row[-2:]) for row in rows]})

    def curve(
        self,
        name: str,
        *,
        level: Level = "step",
        x: str | None = None,
        first: float | None = None,
        last: float | None = None,
        points: int = 1000,
    ) -> MetricCurve:
        """A metric along an axis: of epochs every value; of steps about `points` columns, every
        value where they fit, else summaries.

        Args:
            name: The metric.
            level: "step" for the metric of steps, "epoch" for that of epochs.
            x: step, update, epoch (with the part of it that is over), samples, seconds (of
                training), wall (seconds since 1970), or the name of another metric. Default: the
                level.
            first: Where the range begins along the axis, which is included; by default the
                beginning.
            last: Where it ends, which is included.
            points: How many columns there may be.
        """
        from .curves import epoch_curve, step_curve

        bounds = (first, last)
        if level == "epoch":
            return self._read(lambda file: epoch_curve(file, name, x or level, bounds))
        return self._read(lambda file: step_curve(file, name, x or level, bounds, points))

    @cached_property
    def _epochs(self) -> list[tuple[str, Point]]:
        return self.rows("epoch")

    @cached_property
    def _epochs_by_name(self) -> dict[str, dict[int, Point]]:
        found: dict[str, dict[int, Point]] = {}
        for name, point in self._epochs:
            found.setdefault(name, {})[point.at] = point
        return found

    # Everything else that is logged

    def events(self) -> list[Event]:
        """Everything that happened, in order."""
        return self._read(lambda file: _read_events(file, 0))

    def media(self, name: str | None = None) -> list[MediaItem]:
        """Images, histograms, texts and tables, in the order of steps."""
        where, value = ("id > ?", 0) if name is None else ("name = ?", name)
        return self._read(lambda file: _read_media(file, where, value))

    def media_item(self, number: int) -> MediaItem | None:
        """The item with an id."""
        return next(iter(self._read(lambda file: _read_media(file, "id = ?", number))), None)

    def log_lines(self, last: int = 200) -> list[LogLine]:
        """The last lines of the log, in order."""
        return self._read(lambda file: _read_log_lines(file, 0, last))

    # What is new

    def cursor(self) -> MetricsCursor:
        """How far the file goes."""
        return self._read(_read_cursor)

    def since(
        self, cursor: MetricsCursor, names: Collection[str], *, x: str = "step", points: int = 1000
    ) -> Changes:
        """What was added after a cursor: the values of some metrics, and all else.

        Args:
            cursor: How far the caller has read: that of the last changes, or `MetricsCursor()`.
            names: The metrics.
            x: The axis, as for `curve`.
            points: How many columns a curve may have.
        """
        from .curves import epoch_curve, step_curve

        everything = (None, None)
        along = x if x in AXES else "epoch"

        def read(file: File) -> Changes:
            now = _read_cursor(file)
            is_shorter = any(new < old for new, old in zip(now, cursor, strict=True))
            is_reset = is_shorter or now.generation != cursor.generation
            is_first = is_reset or cursor == MetricsCursor()
            old = MetricsCursor(step=-1) if is_first else cursor
            steps = [
                step_curve(file, name, x, everything, points, after=old.step) for name in names
            ]
            epochs = [epoch_curve(file, name, along, everything, after=old.epoch) for name in names]
            return Changes(
                cursor=now,
                is_reset=is_reset,
                steps={curve.name: curve for curve in steps if curve.total},
                epochs={curve.name: curve for curve in epochs if curve.total},
                events=_read_events(file, old.event),
                media=_read_media(file, "id > ?", old.media),
                log_lines=_read_log_lines(file, old.log_line, MOST_LINES),
            )

        return self._read(read)

    # SQL

    def query(self, sql: str) -> Answer:
        """The answer of a SELECT statement over the views `metrics`, `epochs`, `events`, `media`,
        `log_lines`, `clock`, `summaries` and `names`; nothing is written."""

        def read(state: RestState | None) -> Answer:
            with closing(self._open_for_query(state)) as file:
                try:
                    cursor = file.execute(sql)
                    columns = tuple(column[0] for column in cursor.description or ())
                    return Answer(columns, cursor.fetchall())
                except (sqlite3.Error, sqlite3.Warning) as error:
                    raise _query_error(file, error) from error

        return read_consistently(self.path, read)

    def _open_for_query(self, state: RestState | None) -> File:
        """A file with our own views before any of its own, which allows nothing but reading."""
        if not self.path.is_file():
            raise ConfigurationError(
                "no-metrics", f"The run has not logged any metrics yet: there is no {self.path}."
            )
        try:
            file = open_for_reading(self.path, state)
        except sqlite3.Error as error:
            raise metrics_error(self.path, "read", error) from error
        for view, query in VIEWS.items():
            file.execute(f"CREATE TEMP VIEW {view} AS {query}")
        file.execute("PRAGMA query_only=ON")
        file.set_authorizer(_allow_reading)
        # a function of Python's that SQLite calls is where a signal such as Ctrl-C ends the query
        file.set_progress_handler(lambda: 0, INSTRUCTIONS)
        return file

    # The file

    def _read(self, query: Callable[[File], T]) -> T:
        """What a query finds in one state of the file; nothing where the run has written nothing.

        The query is called with the file, and again where the file has changed meanwhile.
        """

        def read(state: RestState | None) -> T:
            with self._opened(state) as file:
                self._check_names(file)
                return query(file)

        try:
            return read_consistently(self.path, read)
        except sqlite3.Error as error:
            raise metrics_error(self.path, "read", error) from error

    @contextmanager
    def _opened(self, state: RestState | None) -> Iterator[File]:
        """A connection in one transaction; in a `with` block that of before, if it is of the same
        state."""
        known = (self.path.is_file(), state)
        if self._kept is not None and self._kept[1] != known:
            self._close()
        if self._kept is None:
            file = open_for_reading(self.path, state) if known[0] else open_empty()
            self._kept = file, known
        file = self._kept[0]
        try:
            file.execute("BEGIN")
            yield file
        finally:
            file.rollback()
            if not self._is_kept:
                self._close()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept[0].close()
            self._kept = None

    def _check_names(self, file: File) -> None:
        names = f"SELECT 1 FROM names LIMIT {MAX_NAMES + 1}"
        (count,) = file.execute(f"SELECT count(*) FROM ({names})").fetchone()
        if count > MAX_NAMES:
            raise CheckpointError(
                "many-metric-names",
                f"{self.path} has more than {MAX_NAMES:,} names of metrics, too many to list: log "
                "fewer names (without numbers of steps in them), or read the file with `loopwright "
                "query`.",
            )


def _point(at: object, update: object, value: object, exact: object) -> Point | None:
    """A row as written by `MetricsStore`; None for what it would not have written."""
    number = exact_value(value, exact)
    if not isinstance(at, int) or not isinstance(update, int) or number is None:
        return None
    return Point(at, update, number)


def _last_step(file: File) -> tuple[Any, Any] | None:
    """The (step, update) of the newest step, if there is any."""
    query = (
        'SELECT v.step, v."update" FROM names n CROSS JOIN step_values v ON v.name = n.id '
        "AND v.step = (SELECT max(step) FROM step_values WHERE name = n.id) "
        "ORDER BY v.step DESC LIMIT 1"
    )
    row: tuple[Any, Any] | None = file.execute(query).fetchone()
    return row


def _read_cursor(file: File) -> MetricsCursor:
    facts = file.execute("SELECT value FROM facts WHERE key = 'generation'").fetchone()
    step = _last_step(file)
    columns = {"epoch_clock": "epoch", "events": "id", "media": "id", "log_lines": "id"}
    lasts = [
        file.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] or 0
        for table, column in columns.items()
    ]
    return MetricsCursor(facts[0] if facts else 0, step[0] if step else 0, *lasts)


def _read_events(file: File, after: int) -> list[Event]:
    columns = 'id, kind, text, detail, "update", step, epoch, samples, seconds, wall'
    rows = file.execute(f"SELECT {columns} FROM events WHERE id > ? ORDER BY id", (after,))
    return [
        Event(number, kind, text or "", json.loads(detail or "{}") or {}, *place)
        for number, kind, text, detail, *place in rows
    ]


def _read_media(file: File, where: str, value: int | str) -> list[MediaItem]:
    """The media that fit a condition on a value, in the order of steps."""
    query = (
        'SELECT id, name, kind, "update", step, epoch, samples, seconds, wall, position, file, '
        f"content, caption FROM media WHERE {where} ORDER BY step, name, position"
    )
    found = []
    for row in file.execute(query, (value,)):
        item = MediaItem(*row)
        if item.kind != "text" and item.content is not None:
            item = replace(item, content=json.loads(item.content))
        found.append(item)
    return found


def _read_log_lines(file: File, after: int, last: int) -> list[LogLine]:
    """The last lines of the log after one with an id, in order."""
    query = "SELECT id, wall, level, text FROM log_lines WHERE id > ? ORDER BY id DESC LIMIT ?"
    return [LogLine(*row) for row in reversed(file.execute(query, (after, last)).fetchall())]


def _allow_reading(action: int, *what: str | None) -> int:
    reading = {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_FUNCTION,
    }
    is_reading = action in reading and "load_extension" not in what
    return sqlite3.SQLITE_OK if is_reading else sqlite3.SQLITE_DENY


def _query_error(file: File, error: Exception) -> BaseException:
    if str(error) == "interrupted":
        return KeyboardInterrupt()
    file.set_authorizer(None)
    return ConfigurationError(
        "query-failed",
        f"The query cannot be run: {error}. It can only read: write one SELECT statement, of what "
        f"is there:{_described(file)}",
    )


def _described(file: File) -> str:
    """A line for each view, with its columns."""
    lines = []
    for name in QUERIED:
        cursor = file.execute(f"SELECT * FROM {name} LIMIT 0")
        lines.append(f"\n  {name}({', '.join(column[0] for column in cursor.description)})")
    return "".join(lines)
