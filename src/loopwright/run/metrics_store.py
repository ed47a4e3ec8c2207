"""The writer of `metrics.sqlite`: rows are queued by the training and written behind it by a
thread, each kind of row as a job that a transaction runs.

Rows go in by statements of many rows: Python's sqlite3 gives the interpreter lock away for every
statement, and gets it back from a busy training thread only after milliseconds.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ..checkpoint.atomic import staged_file, write_bytes
from ..errors import CheckpointError
from ..metrics.rows import Place, StepRow
from ..trees import as_json
from .schema import (
    CLOCK_AT,
    LEVELS,
    exact_bytes,
    exact_value,
    metrics_error,
    open_for_reading,
    open_for_writing,
    summarize,
)

if TYPE_CHECKING:
    import sqlite3

    from ..metrics.media import Media

logger = logging.getLogger("loopwright")

StepValue: TypeAlias = tuple[int, int, str, float]  # update, step, name, value
EpochRow: TypeAlias = tuple[int, int, str, float]  # epoch, update, name, value

# between two commits: with the time between two log points, well below a second
WRITE_SECONDS = 0.25
CLEAN_SECONDS = 0.3  # that closing waits for readers, so that the log of SQLite can be removed
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
_OF_PARENTS: list[Tables | None] = []  # connections of a process that was forked


class MetricsStore:
    """What a run logs, in one SQLite file; a thread writes it behind the training, several times a
    second.

    All `add_` methods only queue. A write that fails is kept and tried again; the next call raises
    its error.

    SQLite has no NaN and no negative zero: such a value has its eight bytes in the column `exact`,
    and NULL or zero in `value`, so plain SQL over `value` does what one expects. A file of the
    first edition is brought to today's format when it is written to; reading leaves it alone.

    Args:
        path: The file, as `metrics.sqlite` in a run directory.
        read_only: Read only, and create nothing; the file is open during a call, and needs no
            `close`.

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
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._queue: deque[LogPoint | Job] = deque()
        self._tables: Tables | None = None
        self._lock = threading.RLock()  # of the connection
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._error: Exception | None = None  # of the thread, until a call raises it

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the metrics of steps, all or none of them: a log point."""
        self._add(LogPoint(list(rows), time.time()))

    def add_epoch(
        self,
        epoch: int,
        update: int,
        metrics: Mapping[str, float],
        *,
        step: int | None = None,
        samples: int | None = None,
        seconds: float | None = None,
        wall: float | None = None,
    ) -> None:
        """Add the metrics of an epoch, all or none of them, and where in the run it ended."""
        self._add(AddEpoch(epoch, update, dict(metrics), (step, samples, seconds, _now(wall))))

    def add_event(
        self,
        kind: str,
        text: str = "",
        *,
        place: Place | None = None,
        detail: Mapping[str, Any] | None = None,
        wall: float | None = None,
    ) -> None:
        """Add something that happened, such as a checkpoint; `place` is (update, step, epoch,
        samples, seconds)."""
        self._add(
            AddEvent(kind, text, None if detail is None else json_text(detail), place, _now(wall))
        )

    def add_media(self, media: Media) -> None:
        """Add images, a histogram, a text or a table; images become files in the folder `media`
        beside the file."""
        self._add(AddMedia(media))

    def add_log_line(self, level: str, text: str, *, wall: float | None = None) -> None:
        """Add a line of the log."""
        self._add(AddLogLine(level, text, _now(wall)))

    def truncate(self, *, step: int, epoch: int, is_finished: bool | None = None) -> None:
        """Remove what is after a position, so that a run resumed there adds it once. It is done
        when this returns.

        Metrics, media, and the events of what a resumed run does again are removed; log lines, and
        the events of processes (their start, a signal, an error), stay.

        Args:
            step: The last step that stays.
            epoch: The last epoch that stays.
            is_finished: Whether the `train` call was finished in the resume point; None where the
                position is not a resume point: the events of this step then stay.
        """
        self._add(Truncate(step, epoch, is_finished))
        self.flush()

    def flush(self) -> None:
        """Return when all that was added is committed: a killed process does not lose it."""
        self._leave_parent_alone()
        with self._lock:
            self._error = None
            self._write_queue()
            self._raise()

    def sync(self) -> None:
        """Make every row added so far survive a power failure too."""
        self.flush()
        log = self.path.with_name(self.path.name + "-wal")
        if self._tables is not None and log.exists():
            descriptor = os.open(log, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Write what is queued and close the file; using the store again opens it again."""
        self._leave_parent_alone()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)
        try:
            self.flush()
        finally:
            with self._lock:
                self._disconnect()

    def last_step(self) -> int:
        """The last step that has metrics; 0 where there are none."""
        with self._reading() as tables:
            return tables.read_last_step() or 0

    def steps(self, name: str | None = None) -> list[StepValue]:
        """The (update, step, name, value) rows of one metric, or of all, in the order of steps."""
        return self._select('v."update", v.step', "step", name)

    def epochs(self, name: str | None = None) -> list[EpochRow]:
        """The (epoch, update, name, value) rows of one metric, or of all, in the order of
        epochs."""
        return self._select('v.epoch, v."update"', "epoch", name)

    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        with self._reading() as tables:
            return [
                name
                for (name,) in tables.connection.execute("SELECT name FROM names ORDER BY name")
            ]

    def _select(
        self, columns: str, place: str, name: str | None
    ) -> list[tuple[int, int, str, float]]:
        condition, values = ("", ()) if name is None else ("WHERE n.name = ?", (name,))
        query = (
            f"SELECT {columns}, n.name, v.value, v.exact FROM names n CROSS JOIN "
            f"{place}_values v ON v.name = n.id"
        )
        with self._reading() as tables:
            rows = tables.connection.execute(
                f"{query} {condition} ORDER BY v.{place}, v.name", values
            ).fetchall()
        found = (
            (first, second, key, exact_value(value, exact))
            for first, second, key, value, exact in rows
        )
        return [
            (first, second, key, value) for first, second, key, value in found if value is not None
        ]

    # The queue

    def _add(self, job: LogPoint | Job) -> None:
        self._leave_parent_alone()
        self._queue.append(job)
        if self._thread is None:
            self._start()
        if self._error is not None:
            self._raise()

    def _leave_parent_alone(self) -> None:
        """In a fork, begin anew: what is queued and open is the parent's, whose threads are not
        here."""
        if self._process != os.getpid():
            # a connection must not even be closed in another process
            _OF_PARENTS.append(self._tables)
            self._reset()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:  # several threads may log
                self._stop.clear()
                thread = threading.Thread(target=self._run, name="loopwright-metrics", daemon=True)
                # Python 3.12 starts no thread when the program ends: `close` writes then
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread
                    # a daemon thread does not outlive the program; what is queued must
                    atexit.register(self.close)

    def _run(self) -> None:
        while not self._stop.wait(WRITE_SECONDS):
            if self._queue:
                with self._lock:
                    self._write_queue()

    def _raise(self) -> None:
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def _write_queue(self) -> None:
        """Commit all that is queued; an error is kept for the next call, and what it concerns for
        the next attempt."""
        try:
            while self._queue:
                self._commit(list(self._queue))
        except Exception as error:
            if not _may_succeed_later(error):
                self._error = error
                return
            self._error = CheckpointError(
                "metrics-unwritable",
                f"The metrics in {self.path} cannot be written: {error}. Earlier data is "
                "unchanged; check the free disk space and the permissions.",
            )
            self._error.__cause__ = error

    def _commit(self, jobs: list[LogPoint | Job]) -> None:
        """Write jobs in one transaction and take them off the queue, and a job that can never be
        written too."""
        import sqlite3

        self._leave_removed_file()
        tables = self._open()
        try:
            tables.connection.execute("BEGIN IMMEDIATE")
            for is_steps, group in groupby(jobs, key=lambda job: isinstance(job, LogPoint)):
                if is_steps:
                    write_steps(tables, cast("list[LogPoint]", list(group)))
                else:
                    for job in cast("Iterator[Job]", group):
                        job(tables)
            tables.connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                tables.connection.execute("ROLLBACK")
            tables.forget()
            if _may_succeed_later(error) or not isinstance(error, Exception):
                raise
            self._commit_singly(jobs, error)
        else:
            for _ in jobs:
                self._queue.popleft()
            tables.delete_files()

    def _commit_singly(self, jobs: list[LogPoint | Job], error: BaseException) -> None:
        """Write jobs one after the other, so that one that cannot be written does not keep the
        others back."""
        if len(jobs) == 1:
            self._queue.popleft()
            raise error
        for job in jobs:
            self._commit([job])

    # The file

    @contextmanager
    def _reading(self) -> Iterator[Tables]:
        self._leave_parent_alone()
        with self._lock:
            if not self.read_only:
                self.flush()
            try:
                yield self._open()
            finally:
                if self.read_only:
                    self._disconnect()

    def _leave_removed_file(self) -> None:
        """Begin a new file where ours was removed: SQLite would go on writing to it, where nobody
        will find it."""
        if self._tables is not None and not self.path.exists():
            self._disconnect()
            logger.warning(
                "%s was removed while the run was writing it: its metrics and events are lost. A "
                "new file is written from now on.",
                self.path,
            )

    def _open(self) -> Tables:
        if self._tables is None:
            connection = (
                self._connect_read_only() if self.read_only else open_for_writing(self.path)
            )
            self._tables = Tables(connection, self.path.parent)
        return self._tables

    def _connect_read_only(self) -> sqlite3.Connection:
        import sqlite3

        try:
            return open_for_reading(self.path)
        except sqlite3.Error as error:
            raise metrics_error(self.path, "opened", error) from error

    def _disconnect(self) -> None:
        """Close the file so that SQLite removes its log, for which no reader may have it open at
        that moment."""
        import sqlite3

        if self._tables is None:
            return
        tables = self._tables
        self._tables = None
        with suppress(sqlite3.Error):
            tables.connection.execute("PRAGMA busy_timeout=100")
            tables.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        tables.connection.close()
        log = self.path.with_name(self.path.name + "-wal")
        end = time.monotonic() + CLEAN_SECONDS
        while not self.read_only and log.exists() and time.monotonic() < end:
            time.sleep(0.02)
            with suppress(sqlite3.Error, CheckpointError):
                open_for_writing(self.path).close()


def _may_succeed_later(error: BaseException) -> bool:
    """Whether an error is about the file and its disk; others are about the row."""
    import sqlite3

    return (
        isinstance(error, (sqlite3.OperationalError, OSError))
        or type(error) is sqlite3.DatabaseError
    )


def _now(wall: float | None) -> float:
    return time.time() if wall is None else wall


# What a transaction writes


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


class AddEpoch(NamedTuple):
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


class AddEvent(NamedTuple):
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


class AddLogLine(NamedTuple):
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


Job: TypeAlias = AddEpoch | AddEvent | AddLogLine | AddMedia | Truncate


def _remove_media(tables: Tables, where: str, values: tuple[object, ...]) -> None:
    files = tables.connection.execute(f"SELECT file FROM media WHERE {where}", values).fetchall()
    if files:
        tables.connection.execute(f"DELETE FROM media WHERE {where}", values)
        tables.removed |= {file for (file,) in files if file is not None}
        tables.count_generation()


def json_text(value: object) -> str:
    """A value as JSON; numbers that JSON lacks become the texts "nan", "inf" and "-inf"."""
    return json.dumps(as_json(value), allow_nan=False)


def _unicode(text: str) -> str:
    """A text that SQLite can hold: paths and what others print need not be Unicode."""
    return text.encode(errors="backslashreplace").decode()


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
