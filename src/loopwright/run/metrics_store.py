"""The writer of `metrics.sqlite`: rows are queued by the training and written behind it by a
thread."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..errors import CheckpointError
from ..metrics.rows import Place, StepRow
from .metrics_writing import (
    AddMedia,
    Epoch,
    Event,
    Job,
    LogLine,
    LogPoint,
    Tables,
    Truncate,
    json_text,
    write_steps,
)
from .schema import exact_value, open_for_reading, open_for_writing

if TYPE_CHECKING:
    import sqlite3

    from ..metrics.media import Media

logger = logging.getLogger("loopwright")

StepValue: TypeAlias = tuple[int, int, str, float]  # update, step, name, value
EpochRow: TypeAlias = tuple[int, int, str, float]  # epoch, update, name, value

WRITE_SECONDS = (
    0.25  # between two commits: with the time between two log points, well below a second
)
CLEAN_SECONDS = 0.3  # that closing waits for readers, so that the log of SQLite can be removed


_OF_PARENTS: list[Tables | None] = []


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
        self._add(Epoch(epoch, update, dict(metrics), (step, samples, seconds, _now(wall))))

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
            Event(kind, text, None if detail is None else json_text(detail), place, _now(wall))
        )

    def add_media(self, media: Media) -> None:
        """Add images, a histogram, a text or a table; images become files in the folder `media`
        beside the file."""
        self._add(AddMedia(media))

    def add_log_line(self, level: str, text: str, *, wall: float | None = None) -> None:
        """Add a line of the log."""
        self._add(LogLine(level, text, _now(wall)))

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
                f"The metrics in {self.path} cannot be written: {error}. Earlier data is "
                "unchanged; check the free disk space and the permissions."
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
            connect = self._connect_read_only if self.read_only else open_for_writing
            self._tables = Tables(connect(self.path), self.path.parent)
        return self._tables

    def _connect_read_only(self, path: Path) -> sqlite3.Connection:
        import sqlite3

        try:
            return open_for_reading(path)
        except sqlite3.Error as error:
            raise CheckpointError(
                f"The metrics in {path} cannot be opened: {error}. Restore the file, or move it "
                "away."
            ) from error

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
