"""Open metrics of runs: files at rest stay open between requests, files of a training run are
closed at once.

A reader that has the file of a training run open when the run ends would make SQLite leave its log
behind; a file at rest is opened without any lock. See `MetricsView`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, LoopwrightError
from ..run.metrics_view import MetricsView
from ..run.reading import METRICS

logger = logging.getLogger("loopwright")

MAX_OPEN = 100


@dataclass(slots=True)
class _Open:
    stamp: tuple[int, int]
    view: MetricsView
    num_users: int = 0
    is_dropped: bool = False


class Stores:
    """The metrics of runs, opened when they are asked for; at most `MAX_OPEN` stay open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, run: Path) -> Iterator[MetricsView]:
        """The metrics of a run directory, for one request.

        Raises:
            CheckpointError: The file is damaged, or holds rows that make no sense.
        """
        with self._lent(run / METRICS) as metrics:
            try:
                yield metrics
            except LoopwrightError:
                raise
            except (
                ValueError,
                TypeError,
                LookupError,
                ArithmeticError,
            ) as error:  # no row that we have written
                logger.debug("%s contains malformed rows", metrics.path, exc_info=True)
                raise CheckpointError(
                    f"The metrics in {metrics.path} are damaged: {error}."
                ) from error

    @contextmanager
    def _lent(self, path: Path) -> Iterator[MetricsView]:
        stamp = _at_rest(path)
        if stamp is None:
            view = MetricsView(path, keep_open=True)
            try:
                yield view
            finally:
                view.close()
            return
        held = self._take(path, stamp)
        try:
            yield held.view
        finally:
            self._give_back(held)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for path in list(self._open):
                self._drop(path)

    def _take(self, path: Path, stamp: tuple[int, int]) -> _Open:
        with self._lock:
            held = self._open.get(path)
            if held is None or held.stamp != stamp:
                self._drop(path)
                held = self._open[path] = _Open(stamp, MetricsView(path, keep_open=True))
            self._open.move_to_end(path)
            held.num_users += 1
            while len(self._open) > MAX_OPEN:
                self._drop(next(iter(self._open)))
            return held

    def _give_back(self, held: _Open) -> None:
        with self._lock:
            held.num_users -= 1
            if held.is_dropped and not held.num_users:
                held.view.close()

    def _drop(self, path: Path) -> None:
        held = self._open.pop(path, None)
        if held is not None:
            held.is_dropped = True
            if not held.num_users:
                held.view.close()


def _at_rest(path: Path) -> tuple[int, int] | None:
    """Time and size of a file that no process writes to; None where one may."""
    try:
        if os.path.getsize(f"{path}-wal") > 0:
            return None
    except OSError:
        pass
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
