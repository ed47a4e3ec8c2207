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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ..checkpoint.atomic import staged_file, write_bytes
from ..errors import CheckpointError
from ..metrics.rows import Place, StepRow
from ..trees import as_json
from .schema import CLOCK_AT, LEVELS, File, exact_bytes, open_for_writing, summarize

if TYPE_CHECKING:
    from ..metrics.media import Media

logger = logging.getLogger("loopwright")

# between two commits: with the time between two log points, well below a second
WRITE_SECONDS = 0.25
CLEAN_SECONDS = 0.3  # that closing waits for readers, so that the log of SQLite can be removed
EVENT = 'kind, text, detail, "update", step, epoch, samples, seconds, wall'
MEDIA = (
    'name, kind, "update", step, epoch, samples, seconds, wall, position, file, content, caption'
)
MOST_ROWS = 4096  # of one statement; SQLite takes 32,766 values
PAUSE_SECONDS = 0.05  # of time that is no training: the clock then notes the step after it too
REPEATED_EVENTS = ("checkpoint", "best", "evaluation")  # that a run has again after a rewind
# of processes, which a resumed run keeps
PROCESS_EVENTS = ("started", "resumed", "signal", "failed", "compiled")
END_EVENTS = ("finished", "stopped")  # of a call
_OF_PARENTS: list[Tables | None] = []  # connections of a process that was forked


class MetricsStore:
    """What a run logs, in one SQLite file; a thread writes it behind the training, several times a
    second.

    All `add_` methods only queue. A write that fails is kept and tried again; the next call raises
    its error. Reading leaves a file of the first edition alone; writing brings it to today's format.

    SQLite has no NaN and no negative zero: such a value has its eight bytes in the column `exact`,
    and NULL or zero in `value`, so plain SQL over `value` does what one expects.

    Args:
        path: The file, as `metrics.sqlite` in a run directory.

    >>> import pathlib, tempfile
    >>> from loopwright.run import MetricsStore, MetricsView, StepRow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = MetricsStore(pathlib.Path(folder) / "metrics.sqlite")
    ...     store.add_steps([StepRow(update=1, step=1, epoch=0, samples=8, seconds=0.1, values={"loss": 0.5})])
    ...     store.close()
    ...     print(MetricsView(store.path).steps("loss"))
    [Point(at=1, update=1, value=0.5)]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
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
        clock = (epoch, update, step, samples, seconds, _now(wall))
        self._add(partial(write_epoch, metrics=dict(metrics), clock=clock))

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
        noted = None if detail is None else json_text(detail)
        row = (kind, _unicode(text), noted, *(place or [None] * 5), _now(wall))
        self._add(lambda tables: tables.insert("events", EVENT, row))

    def add_media(self, media: Media) -> None:
        """Add images, a histogram, a text or a table; images become files in the folder `media`
        beside the file."""
        self._add(partial(write_media, media=media))

    def add_log_line(self, level: str, text: str, *, wall: float | None = None) -> None:
        """Add a line of the log."""
        row = (_now(wall), level, _unicode(text))
        self._add(lambda tables: tables.insert("log_lines", "wall, level, text", row))

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
        self._add(partial(cut, step=step, epoch=epoch, is_finished=is_finished))
        self.flush()

    def flush(self) -> None:
        """Return when all that was added is committed: a killed process does not lose it."""
        self._leave_parent_alone()
        with self._lock:
            self._error = None
            self._write_queue()
            self._raise()

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
            if len(jobs) == 1:
                self._queue.popleft()
                raise
            for single in jobs:  # one that cannot be written does not keep the others back
                self._commit([single])
        else:
            for _ in jobs:
                self._queue.popleft()
            tables.delete_files()

    # The file

    def _open(self) -> Tables:
        if self._tables is not None and not self.path.exists():
            # SQLite would go on writing to the removed file, where nobody will find it
            self._disconnect()
            logger.warning(
                "%s was removed while the run was writing it: its metrics and events are lost. A "
                "new file is written from now on.",
                self.path,
            )
        if self._tables is None:
            self._tables = Tables(open_for_writing(self.path), self.path.parent)
        return self._tables

    def _disconnect(self) -> None:
        """Close the file so that SQLite removes its log, for which no reader may have it open at
        that moment."""
        import sqlite3

        if self._tables is None:
            return
        connection = self._tables.connection
        self._tables = None
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout=100")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        log = self.path.with_name(self.path.name + "-wal")
        end = time.monotonic() + CLEAN_SECONDS
        while log.exists() and time.monotonic() < end:
            time.sleep(0.02)
            with suppress(sqlite3.Error, CheckpointError):
                open_for_writing(self.path).close()


def _may_succeed_later(error: BaseException) -> bool:
    """Whether an error is about the file and its disk; others are about the row."""
    import sqlite3

    is_of_file = isinstance(error, (sqlite3.OperationalError, OSError))
    return is_of_file or type(error) is sqlite3.DatabaseError


def _now(wall: float | None) -> float:
    return time.time() if wall is None else wall


# What a transaction writes


class Tables:
    """A connection and what the writer remembers of the file; forgotten where a transaction
    fails."""

    def __init__(self, connection: File, folder: Path) -> None:
        self.connection = connection
        self.folder = folder  # the run directory
        self.forget()

    def forget(self) -> None:
        """Read again what is remembered: it may be of a transaction that failed."""
        self.ids: dict[str, int] = {}
        self.last_step: int | None = None
        # seconds of training and wall time of the last log point
        self.last_clock: tuple[float, float] | None = None
        self.removed: set[str] = set()  # files of rows that the transaction has removed

    def delete_files(self) -> None:
        """Delete the files that no row has any more, once that is committed."""
        for file in self.removed:
            query = "SELECT 1 FROM media WHERE file = ?"
            if not self.connection.execute(query, (file,)).fetchone():
                with suppress(OSError):  # a file too many harms nobody
                    (self.folder / file).unlink()
        self.removed = set()

    def id_of(self, name: str) -> int:
        """The id of a metric's name, which gets one at its first use."""
        if not self.ids:
            rows = self.connection.execute("SELECT name, id FROM names")
            self.ids = dict(rows.fetchall())
        if name not in self.ids:
            cursor = self.connection.execute("INSERT INTO names (name) VALUES (?)", (name,))
            self.ids[name] = int(cursor.lastrowid or 0)
        return self.ids[name]

    def insert(self, table: str, columns: str, row: Sequence[object]) -> None:
        """Insert one row."""
        self.connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({_marks(row)})", row)

    def replace(self, table: str, row: str, values: list[object]) -> None:
        """Insert rows, or replace those of the same key, many by each statement."""
        width = row.count("?")
        for first in range(0, len(values), MOST_ROWS * width):
            part = values[first : first + MOST_ROWS * width]
            num_rows = len(part) // width
            num_padded = 1 << (num_rows - 1).bit_length()
            # A row repeated replaces itself. So there are few different statements, and each is
            # compiled once.
            repeated = part[-width:] * (num_padded - num_rows)
            self.connection.execute(_replacing(table, row, num_padded), part + repeated)

    def is_known(self, step: int) -> bool:
        """Whether there are metrics of this step or later ones."""
        if self.last_step is None:
            each = "SELECT (SELECT max(step) FROM step_values v WHERE v.name = n.id) AS last"
            query = f"SELECT max(last) FROM ({each} FROM names n)"
            (self.last_step,) = self.connection.execute(query).fetchone()
        return self.last_step is not None and step <= self.last_step

    def count_generation(self) -> None:
        """Note that rows were removed or replaced: who has read them has to read anew."""
        self.connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'generation'")


Job: TypeAlias = Callable[[Tables], None]


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
    if tables.is_known(first):
        tables.count_generation()
    tables.last_step = max(tables.last_step or last, last)
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


def write_epoch(tables: Tables, metrics: Mapping[str, float], clock: tuple[Any, ...]) -> None:
    """Write the metrics of an epoch; `clock` is its row of the clock of epochs."""
    epoch, update, *_ = clock
    (known,) = tables.connection.execute("SELECT max(epoch) FROM epoch_clock").fetchone()
    if known is not None and epoch <= known:
        tables.count_generation()
    _insert_values(tables, "epoch_values", [(epoch, update, metrics)])
    tables.replace("epoch_clock", "(?,?,?,?,?,?)", list(clock))


def write_media(tables: Tables, media: Media) -> None:
    """Write an item of media in the place of what had its name at its step, from its position
    on."""
    key = (media.name, media.step, media.position)
    _remove_media(tables, "name = ? AND step = ? AND position >= ?", key)
    place = (media.update, media.step, media.epoch, media.samples, media.seconds, media.wall)
    for position, parts in enumerate(_stored(media, tables.folder), start=media.position):
        tables.insert("media", MEDIA, (media.name, media.kind, *place, position, *parts))


def _stored(media: Media, folder: Path) -> Iterator[tuple[str | None, str | None, str | None]]:
    """The file, the content and the caption of every row of an item; the files are written."""
    from ..metrics.media import Images  # which imports torch

    content = media.content
    if isinstance(content, Images):
        for image, caption in zip(content.files, content.captions, strict=True):
            yield _store_image(image, folder), None, _unicode(caption)
    elif isinstance(content, str):
        yield None, _unicode(content), None
    else:
        yield None, json_text(asdict(content)), None


def _store_image(image: bytes, folder: Path) -> str:
    """Write an image to a file that is named by its content; equal images share one."""
    name = f"media/{hashlib.sha256(image).hexdigest()[:24]}.png"
    path = folder / name
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        with staged_file(path) as staging:
            write_bytes(staging, image)
    return name


def _remove_media(tables: Tables, where: str, values: tuple[object, ...]) -> None:
    files = tables.connection.execute(f"SELECT file FROM media WHERE {where}", values).fetchall()
    if files:
        tables.connection.execute(f"DELETE FROM media WHERE {where}", values)
        tables.removed |= {file for (file,) in files if file is not None}
        tables.count_generation()


def cut(tables: Tables, step: int, epoch: int, is_finished: bool | None) -> None:
    """Remove what is after a position; see `MetricsStore.truncate`."""
    connection = tables.connection
    every = "name IN (SELECT id FROM names) AND"
    tables.forget()
    changed = connection.total_changes
    connection.execute(f"DELETE FROM step_values WHERE {every} step > ?", (step,))
    connection.execute(f"DELETE FROM epoch_values WHERE {every} epoch > ?", (epoch,))
    if connection.total_changes > changed:
        stale = f"DELETE FROM summaries WHERE {every} level = ? AND bucket >= ?"
        for level in LEVELS:
            connection.execute(stale, (level, step >> 3 * level))
        summarize(connection, step, step)
    _cut_clock(connection, step, epoch)
    _cut_events(connection, step, epoch, is_finished)
    if connection.total_changes > changed:
        tables.count_generation()
    _remove_media(tables, "step > ?", (step,))


def _cut_clock(connection: File, step: int, epoch: int) -> None:
    """Remove the clock after the position; what it says of the position itself stays."""
    later = "SELECT 1 FROM clock WHERE step > ? LIMIT 1"
    if connection.execute(later, (step,)).fetchone():
        known = (
            f'SELECT * FROM ({CLOCK_AT}) WHERE "update" IS NOT NULL AND step >= (SELECT '
            "min(step) FROM clock)"
        )
        connection.execute(f"INSERT OR IGNORE INTO clock {known}", (f"[{step}]",))
        connection.execute("DELETE FROM clock WHERE step > ?", (step,))
    connection.execute("DELETE FROM epoch_clock WHERE epoch > ?", (epoch,))


def _cut_events(connection: File, step: int, epoch: int, is_finished: bool | None) -> None:
    """Remove the events that the run has again.

    Several resume points may be saved at one step: at the update, after the evaluation that ends
    its epoch, and at the end of the call. Events that are noted after a resume point are those
    behind its own event.
    """
    if is_finished is None:
        repeated = f"DELETE FROM events WHERE kind IN ({_marks(REPEATED_EVENTS)}) AND step > ?"
        connection.execute(repeated, (*REPEATED_EVENTS, step))
        return
    point = (
        "SELECT max(id) FROM events WHERE kind = 'checkpoint' AND step = ?1 AND epoch = ?2 "
        # earlier versions did not note it
        "AND coalesce(json_extract(detail, '$.finished'), ?3) = ?3"
    )
    (saved,) = connection.execute(point, (step, epoch, is_finished)).fetchone()
    if not step:  # all is done again
        saved = 0
    column, last = ("step", step) if saved is None else ("id", saved)
    kept = (*PROCESS_EVENTS, *(END_EVENTS if is_finished else ()))
    later = f"DELETE FROM events WHERE kind NOT IN ({_marks(kept)}) AND {column} > ?"
    connection.execute(later, (*kept, last))


def json_text(value: object) -> str:
    """A value as JSON; numbers that JSON lacks become the texts "nan", "inf" and "-inf"."""
    return json.dumps(as_json(value), allow_nan=False)


def _unicode(text: str) -> str:
    """A text that SQLite can hold: paths and what others print need not be Unicode."""
    return text.encode(errors="backslashreplace").decode()


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
