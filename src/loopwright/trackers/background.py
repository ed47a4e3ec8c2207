"""A thread that calls functions one after another, so that nothing that is slow or fails is in the
way of training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

from .tracker import TrackedRow

Action: TypeAlias = Callable[[], None]
MOST_ROWS = 100_000  # that wait
MOST_BYTES = 256 << 20  # of media that wait


class Background:
    """Calls actions in order on a daemon thread; rows that wait are written together.

    Args:
        name: The name of the thread.
        write: Called with the rows that have come since the last time.
        on_error: Called with each exception of an action; the next action follows.
        on_full: Called where more waits than there is room for, and what comes then is left out.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[TrackedRow]], None],
        on_error: Callable[[BaseException], None],
        on_full: Action,
    ) -> None:
        self._write = write
        self._on_error = on_error
        self._on_full = on_full
        self._changed = threading.Condition()
        self._waiting: list[Action | list[TrackedRow]] = []
        self._num_rows = 0
        self._num_bytes = 0
        self._is_busy = False
        self._is_closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add_rows(self, rows: list[TrackedRow]) -> None:
        """Let rows be written, unless too many wait."""
        if self._num_rows + len(rows) > MOST_ROWS:
            self._on_full()
            return
        with self._changed:
            if self._waiting and isinstance(last := self._waiting[-1], list):
                last.extend(rows)
            else:
                self._waiting.append(rows)
            self._num_rows += len(rows)
            self._changed.notify_all()

    def call(self, action: Action, num_bytes: int = 0) -> None:
        """Let an action be called after what waits, unless its bytes are too many."""
        if num_bytes and self._num_bytes + num_bytes > MOST_BYTES:
            self._on_full()
            return
        with self._changed:
            self._waiting.append(action)
            self._num_bytes += num_bytes
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written; False where that takes longer than so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, seconds)

    def close(self, seconds: float) -> bool:
        """Wait as `wait` does, and end the thread once nothing waits."""
        end = monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return self.wait(max(end - monotonic(), 0.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                items = self._waiting
                self._waiting = []
                self._num_rows = 0
                self._num_bytes = 0
                self._is_busy = True
            try:
                for item in items:
                    self._call(item)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _call(self, item: Action | list[TrackedRow]) -> None:
        try:
            if isinstance(item, list):
                self._write(item)
            else:
                item()
        except (
            BaseException
        ) as error:  # a tracker may raise anything, SystemExit too, and training goes on
            self._on_error(error)
