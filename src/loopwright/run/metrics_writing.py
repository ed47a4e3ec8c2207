"""What is written to `metrics.sqlite`, each kind of row as a job that a transaction runs.

Rows go in by statements of many rows: Python's sqlite3 gives the interpreter lock away for every
statement, and gets it back from a busy training thread only after milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..checkpoint.atomic import staged_file, write_bytes
from ..metrics.rows import Place, StepRow
from .schema import CLOCK_AT, LEVELS, exact_bytes, summarize

if TYPE_CHECKING:
    import sqlite3

    from ..metrics.media import Media

MOST_ROWS = 4096  # of one statement; SQLite takes 32,766 values
PAUSE_SECONDS = 0.05  # of time that is no training: the clock then notes the step after it too
REPEATED_EVENTS = ("checkpoint", "best", "evaluation")  # that a run has again after a rewind
# of processes, which a resumed run keeps
PROCESS_EVENTS = (
    "started",
    "resumed",
    "signal",
    "failed",
    "compiled",
)
END_EVENTS = ("finished", "stopped")  # of a call


@dataclass(slots=True, eq=False, repr=False)
class Tables:
    """A connection and what the writer remembers of the file; forgotten where a transaction
    fails."""

    connection: sqlite3.Connection
    folder: Path  # the run directory
    ids: dict[str, int] = field(default_factory=dict)
    last_step: int | None = None
    last_clock: tuple[float, float] | None = (
        None  # seconds of training and wall time of the last log point
    )
    removed: set[str] = field(default_factory=set)  # files of rows that the transaction has removed

    def forget(self) -> None:
        """Read again what is remembered: it may be of a transaction that failed."""
        self.ids, self.last_step, self.last_clock, self.removed = {}, None, None, set()

    def delete_files(self) -> None:
        """Delete the files that no row has any more, once that is committed."""
        for file in self.removed:
            if not self.connection.execute(
                "SELECT 1 FROM media WHERE file = ?", (file,)
            ).fetchone():
                with suppress(OSError):  # a file too many harms nobody
                    (self.folder / file).unlink()
        self.removed = set()

    def id_of(self, name: str) -> int:
        """The id of a metric's name, which gets one at its first use."""
        if not self.ids:
            self.ids = {
                name: key for key, name in self.connection.execute("SELECT id, name FROM names")
            }
        if name not in self.ids:
            cursor = self.connection.execute("INSERT INTO names (name) VALUES (?)", (name,))
            self.ids[name] = int(cursor.lastrowid or 0)
        return self.ids[name]

    def replace(self, table: str, row: str, values: list[object]) -> None:
        """Insert rows, or replace those of the same key, many by each statement."""
        width = row.count("?")
        for first in range(0, len(values), MOST_ROWS * width):
            part = values[first : first + MOST_ROWS * width]
            num_rows = len(part) // width
            num_padded = 1 << (num_rows - 1).bit_length()
            # A row repeated replaces itself. So there are few different statements, and each is
            # compiled once.
            self.connection.execute(
                _replacing(table, row, num_padded), part + part[-width:] * (num_padded - num_rows)
            )

    def read_last_step(self) -> int | None:
        """The last step that has metrics."""
        each = (
            "SELECT (SELECT max(step) FROM step_values v WHERE v.name = n.id) AS last FROM names n"
        )
        (last,) = self.connection.execute(f"SELECT max(last) FROM ({each})").fetchone()
        return None if last is None else int(last)

    def count_generation(self) -> None:
        """Note that rows were removed or replaced: who has read them has to read anew."""
        self.connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'generation'")


@cache
def _replacing(table: str, row: str, num_rows: int) -> str:
    return f"INSERT OR REPLACE INTO {table} VALUES " + ",".join([row] * num_rows)


class LogPoint(NamedTuple):
    """Rows of consecutive steps, and the time at which they were logged."""

    rows: list[StepRow]
    wall: float


def write_steps(tables: Tables, points: Sequence[LogPoint]) -> None:
    """Write the values of steps, their summaries, and the clock."""
    rows = [row for point in points for row in point.rows]
    if not rows:
        return
    steps = [row.step for row in rows]
    first = min(steps)
    last = max(steps)
    known = tables.read_last_step() if tables.last_step is None else tables.last_step
    if known is not None and first <= known:
        tables.count_generation()
    tables.last_step = last if known is None else max(known, last)
    _insert_values(tables, "step_values", ((row.step, row.update, row.values) for row in rows))
    summarize(tables.connection, first, last)
    clock = [value for point in points if point.rows for value in _clock(tables, point)]
    tables.replace("clock", "(?,?,?,?,?,?)", clock)


def _insert_values(
    tables: Tables, table: str, rows: Iterable[tuple[int, int, Mapping[str, float]]]
) -> None:
    """Insert the metrics of steps or epochs."""
    plain: list[object] = []
    odd: list[object] = []
    for at, update, metrics in rows:
        for name, given in metrics.items():
            value = float(given)
            key = tables.ids.get(name) or tables.id_of(name)
            if value == value and value != 0.0:
                plain += (key, at, update, value)
            else:
                odd += (key, at, update, value, exact_bytes(value))
    tables.replace(table, "(?,?,?,?,NULL)", plain)
    tables.replace(table, "(?,?,?,?,?)", odd)


def _clock(tables: Tables, point: LogPoint) -> Iterator[object]:
    """The place of the last step of a log point, and that of its first step at the beginning and
    after a pause."""
    first = point.rows[0]
    last = point.rows[-1]
    started = point.wall - (last.seconds - first.seconds)
    before = tables.last_clock
    if before is None or started - before[1] > first.seconds - before[0] + PAUSE_SECONDS:
        yield from (first.step, first.update, first.epoch, first.samples, first.seconds, started)
    yield from (last.step, last.update, last.epoch, last.samples, last.seconds, point.wall)
    tables.last_clock = last.seconds, point.wall


class Epoch(NamedTuple):
    """A job that writes the metrics of an epoch."""

    epoch: int
    update: int
    metrics: Mapping[str, float]
    place: tuple[int | None, int | None, float | None, float]  # step, samples, seconds, wall

    def __call__(self, tables: Tables) -> None:
        (known,) = tables.connection.execute("SELECT max(epoch) FROM epoch_clock").fetchone()
        if known is not None and self.epoch <= known:
            tables.count_generation()
        _insert_values(tables, "epoch_values", [(self.epoch, self.update, self.metrics)])
        values = (self.epoch, self.update, *self.place)
        tables.connection.execute(
            "INSERT OR REPLACE INTO epoch_clock VALUES (?, ?, ?, ?, ?, ?)", values
        )


class Event(NamedTuple):
    """A job that writes an event."""

    kind: str
    text: str
    detail: str | None
    place: Place | None
    wall: float

    def __call__(self, tables: Tables) -> None:
        columns = 'kind, text, detail, "update", step, epoch, samples, seconds, wall'
        values = (
            self.kind,
            _unicode(self.text),
            self.detail,
            *(self.place or (None,) * 5),
            self.wall,
        )
        tables.connection.execute(
            f"INSERT INTO events ({columns}) VALUES ({_marks(values)})", values
        )


class LogLine(NamedTuple):
    """A job that writes a line of the log."""

    level: str
    text: str
    wall: float

    def __call__(self, tables: Tables) -> None:
        query = "INSERT INTO log_lines (wall, level, text) VALUES (?, ?, ?)"
        tables.connection.execute(query, (self.wall, self.level, _unicode(self.text)))


class AddMedia(NamedTuple):
    """A job that writes an item of media in the place of what had its name at its step, from its
    position on."""

    media: Media

    def __call__(self, tables: Tables) -> None:
        media = self.media
        _remove_media(
            tables,
            "name = ? AND step = ? AND position >= ?",
            (media.name, media.step, media.position),
        )
        columns = (
            'name, kind, "update", step, epoch, samples, seconds, wall, position, file, '
            "content, caption"
        )
        place = (media.update, media.step, media.epoch, media.samples, media.seconds, media.wall)
        for position, (file, content, caption) in enumerate(
            _stored(media, tables.folder), start=media.position
        ):
            values = (media.name, media.kind, *place, position, file, content, caption)
            tables.connection.execute(
                f"INSERT INTO media ({columns}) VALUES ({_marks(values)})", values
            )


def _stored(media: Media, folder: Path) -> Iterator[tuple[str | None, str | None, str | None]]:
    """The file, the content and the caption of every row of an item; the files are written."""
    from ..metrics.media import Histogram, Images, Table

    content = media.content
    if isinstance(content, Images):
        for image, caption in zip(content.files, content.captions, strict=True):
            yield _store_image(image, folder), None, _unicode(caption)
    elif isinstance(content, str):
        yield None, _unicode(content), None
    elif isinstance(content, Histogram):
        yield None, json_text({"edges": content.edges, "counts": content.counts}), None
    else:
        assert isinstance(content, Table)
        yield None, json_text({"columns": content.columns, "rows": content.rows}), None


def _store_image(image: bytes, folder: Path) -> str:
    """Write an image to a file that is named by its content; equal images share one."""
    name = f"media/{hashlib.sha256(image).hexdigest()[:24]}.png"
    path = folder / name
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        with staged_file(path) as staging:
            write_bytes(staging, image)
    return name


class Truncate(NamedTuple):
    """A job that removes what is after a position, so that a run resumed there adds it once.

    Several resume points may be saved at one step: at the update, after the evaluation that ends
    its epoch, and at the end of the call. Events that are noted after a resume point are those
    behind its own event.
    """

    step: int
    epoch: int
    # whether the call was finished in the resume point; None after a rewind
    is_finished: bool | None

    def __call__(self, tables: Tables) -> None:
        connection = tables.connection
        every = "name IN (SELECT id FROM names) AND"
        tables.forget()
        changed = connection.total_changes
        connection.execute(f"DELETE FROM step_values WHERE {every} step > ?", (self.step,))
        connection.execute(f"DELETE FROM epoch_values WHERE {every} epoch > ?", (self.epoch,))
        if connection.total_changes > changed:
            for level in LEVELS:
                last = self.step >> 3 * level
                connection.execute(
                    f"DELETE FROM summaries WHERE {every} level = ? AND bucket >= ?", (level, last)
                )
            summarize(connection, self.step, self.step)
        self._cut_clock(connection)
        where, values = self._repeated_events(connection)
        connection.execute(f"DELETE FROM events WHERE {where}", values)
        if connection.total_changes > changed:
            tables.count_generation()
        _remove_media(tables, "step > ?", (self.step,))

    def _repeated_events(self, connection: sqlite3.Connection) -> tuple[str, tuple[object, ...]]:
        """The condition for events that the run has again."""
        if self.is_finished is None:
            return f"kind IN ({_marks(REPEATED_EVENTS)}) AND step > ?", (
                *REPEATED_EVENTS,
                self.step,
            )
        point = (
            "SELECT max(id) FROM events WHERE kind = 'checkpoint' AND step = ?1 AND epoch = ?2 "
            # earlier versions did not note it
            "AND coalesce(json_extract(detail, '$.finished'), ?3) = ?3"
        )
        (saved,) = connection.execute(point, (self.step, self.epoch, self.is_finished)).fetchone()
        kept = (*PROCESS_EVENTS, *(END_EVENTS if self.is_finished else ()))
        if not self.step:  # all is done again
            saved = 0
        behind = ("step > ?", self.step) if saved is None else ("id > ?", saved)
        return f"kind NOT IN ({_marks(kept)}) AND {behind[0]}", (*kept, behind[1])

    def _cut_clock(self, connection: sqlite3.Connection) -> None:
        """Remove the clock after the position; what it says of the position itself stays."""
        if connection.execute(
            "SELECT 1 FROM clock WHERE step > ? LIMIT 1", (self.step,)
        ).fetchone():
            known = (
                f'SELECT * FROM ({CLOCK_AT}) WHERE "update" IS NOT NULL AND step >= (SELECT '
                "min(step) FROM clock)"
            )
            connection.execute(f"INSERT OR IGNORE INTO clock {known}", (f"[{self.step}]",))
            connection.execute("DELETE FROM clock WHERE step > ?", (self.step,))
        connection.execute("DELETE FROM epoch_clock WHERE epoch > ?", (self.epoch,))


Job: TypeAlias = Epoch | Event | LogLine | AddMedia | Truncate


def _remove_media(tables: Tables, where: str, values: tuple[object, ...]) -> None:
    files = tables.connection.execute(f"SELECT file FROM media WHERE {where}", values).fetchall()
    if files:
        tables.connection.execute(f"DELETE FROM media WHERE {where}", values)
        tables.removed |= {file for (file,) in files if file is not None}
        tables.count_generation()


def json_text(value: object) -> str:
    """A value as JSON; numbers that JSON lacks become the texts "nan", "inf" and "-inf"."""
    return json.dumps(_strict(value), allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _unicode(text: str) -> str:
    """A text that SQLite can hold: paths and what others print need not be Unicode."""
    return text.encode(errors="backslashreplace").decode()


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
