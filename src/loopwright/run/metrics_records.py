"""What a run has logged besides numbers, and what is new of all of it since a reader last
looked."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from .axes import AXES
from .curves import Curve, epoch_curve, has_summaries, id_of, step_curve
from .schema import EPOCHS_WITH_PLACE, OLD_TABLES, VALUES_WITH_PLACE, has_tables

if TYPE_CHECKING:
    import sqlite3


MOST_LINES = 1000  # of the log, that are given at once


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
    """An image, a histogram, a text or a table. An image has a file below the run directory, the
    others a content."""

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


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has read; as text, for an address.

    >>> from loopwright.run.metrics_view import Cursor
    >>> str(Cursor(step=7)), Cursor.parse("0.7.0.0.0.0") == Cursor(step=7)
    ('0.7.0.0.0.0', True)
    """

    generation: int = 0
    step: int = 0
    epoch: int = 0
    event: int = 0
    media: int = 0
    log_line: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a text; a ValueError for any other text."""
        parts = text.split(".")
        if len(parts) != 6 or not all(part.isdecimal() and len(part) < 19 for part in parts):
            raise ValueError(
                f"{text!r} is not a cursor: expected six whole numbers separated by points."
            )
        return cls(*map(int, parts))


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new since a cursor. Where `is_reset`, rows were removed or replaced, and this is all
    there is."""

    cursor: Cursor
    is_reset: bool
    steps: dict[str, Curve]
    epochs: dict[str, Curve]
    events: list[Event]
    media: list[MediaItem]
    log_lines: list[LogLine]


def read_last_step(connection: sqlite3.Connection) -> list[Any]:
    """The (step, update) row of the newest step, if there is any."""
    if has_tables(connection, OLD_TABLES):  # whose rows are in the order of steps
        return connection.execute(
            'SELECT step, "update" FROM main.step_metrics ORDER BY rowid DESC LIMIT 1'
        ).fetchall()
    newest = "v.step = (SELECT max(step) FROM step_values WHERE name = n.id)"
    query = (
        'SELECT v.step, v."update" FROM names n CROSS JOIN step_values v ON v.name = n.id '
        f"AND {newest}"
    )
    return connection.execute(f"{query} ORDER BY v.step DESC LIMIT 1").fetchall()


def read_epochs(connection: sqlite3.Connection) -> list[Any]:
    """The (epoch, update, value, exact, name) rows of all metrics of epochs, in order."""
    # of which the names are not looked up: that would read all steps too
    if not has_summaries(connection):
        query = 'SELECT epoch, "update", value, exact, name FROM epoch_values ORDER BY epoch'
        return connection.execute(query).fetchall()
    columns = 'v.epoch, v."update", v.value, v.exact, n.name'
    tables = "names n CROSS JOIN epoch_values v"
    return connection.execute(
        f"SELECT {columns} FROM {tables} ON v.name = n.id ORDER BY v.epoch, v.name"
    ).fetchall()


def read_latest(connection: sqlite3.Connection) -> list[Any]:
    """The (name, value, exact) rows of the newest value of every metric of steps."""
    if not has_summaries(connection):
        rows = connection.execute(
            "SELECT name, value, exact, max(step) FROM step_values GROUP BY name"
        ).fetchall()
        return [row[:3] for row in rows]
    newest = "v.step = (SELECT max(step) FROM step_values WHERE name = n.id)"
    query = (
        "SELECT n.name, v.value, v.exact FROM names n CROSS JOIN step_values v ON v.name = "
        f"n.id AND {newest}"
    )
    return connection.execute(query).fetchall()


def read_columns(
    connection: sqlite3.Connection, name: str, level: Literal["step", "epoch"]
) -> list[Any]:
    """The (step, update, epoch, samples, seconds, wall, value, exact) rows of a metric."""
    query = VALUES_WITH_PLACE if level == "step" else EPOCHS_WITH_PLACE
    return connection.execute(query, (id_of(connection, name),)).fetchall()


def read_cursor(connection: sqlite3.Connection) -> Cursor:
    """How far the file goes."""
    facts = connection.execute("SELECT value FROM facts WHERE key = 'generation'").fetchone()
    steps = read_last_step(connection)
    lasts = [
        connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0] or 0
        for table, column in (
            ("epoch_clock", "epoch"),
            ("events", "id"),
            ("media", "id"),
            ("log_lines", "id"),
        )
    ]
    return Cursor(facts[0] if facts else 0, steps[0][0] if steps else 0, *lasts)


def read_changes(
    connection: sqlite3.Connection, cursor: Cursor, names: Collection[str], x: str, points: int
) -> Changes:
    """What was added after a cursor; everything, where rows were removed since."""
    now = read_cursor(connection)
    is_reset = now.generation != cursor.generation or any(
        new < old for new, old in zip(astuple(now), astuple(cursor), strict=True)
    )
    old = Cursor(step=-1) if is_reset or cursor == Cursor() else cursor
    steps = {}
    epochs = {}
    if now.step != old.step:
        curves = (
            step_curve(connection, name, x, (None, None), points, after=old.step) for name in names
        )
        steps = {curve.name: curve for curve in curves if curve.total}
    if now.epoch != old.epoch:
        axis = x if x in AXES else "epoch"
        curves = (
            epoch_curve(connection, name, axis, (None, None), after=old.epoch) for name in names
        )
        epochs = {curve.name: curve for curve in curves if curve.total}
    rows = read_events(connection, old.event), read_media(connection, "id > ?", old.media)
    return Changes(
        now, is_reset, steps, epochs, *rows, read_log_lines(connection, old.log_line, MOST_LINES)
    )


def read_events(connection: sqlite3.Connection, after: int) -> list[Event]:
    """The events after one with an id."""
    columns = 'id, kind, text, detail, "update", step, epoch, samples, seconds, wall'
    rows = connection.execute(f"SELECT {columns} FROM events WHERE id > ? ORDER BY id", (after,))
    return [
        Event(number, kind, text or "", _json(detail) or {}, *place)
        for number, kind, text, detail, *place in rows
    ]


def read_media(connection: sqlite3.Connection, where: str, value: int | str) -> list[MediaItem]:
    """The media that fit a condition on a value, in the order of steps."""
    columns = (
        'id, name, kind, "update", step, epoch, samples, seconds, wall, position, file, '
        "content, caption"
    )
    rows = connection.execute(
        f"SELECT {columns} FROM media WHERE {where} ORDER BY step, name, position", (value,)
    )
    return [_media_item(*row) for row in rows]


def _media_item(number: int, name: str, kind: str, *others: Any) -> MediaItem:
    content = others[-2]
    return MediaItem(
        number, name, kind, *others[:-2], content if kind == "text" else _json(content), others[-1]
    )  # type: ignore[call-arg]


def read_log_lines(connection: sqlite3.Connection, after: int, last: int) -> list[LogLine]:
    """The last lines of the log after one with an id, in order."""
    query = "SELECT id, wall, level, text FROM log_lines WHERE id > ? ORDER BY id DESC LIMIT ?"
    return [LogLine(*row) for row in reversed(connection.execute(query, (after, last)).fetchall())]


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
