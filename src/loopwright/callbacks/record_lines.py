"""The lines of a program's log and its warnings, collected while a run is recorded; what is printed
stays the same."""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

MAX_LINES = 10_000  # that wait to be taken; older ones are dropped
Line = tuple[str, str, float]  # level, text, seconds since 1970


class LineCollector:
    """Keeps all records of Python's log and all warnings from `start` to `stop`, until they are
    taken."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)  # other threads append, too
        self._detach: Callable[[], None] | None = None
        self._shown: Callable[..., Any] | None = None  # what showed warnings before

    def start(self) -> None:
        """Collect from now on."""
        if self._detach is None:
            from ..run.directory import attach

            self._detach = attach(_Keeper(self._lines))
            self._shown = warnings.showwarning
            warnings.showwarning = self._show

    def stop(self) -> None:
        """Collect no more; what was collected can still be taken."""
        if self._detach is not None:
            self._detach()
            if warnings.showwarning == self._show and self._shown is not None:
                warnings.showwarning = self._shown
            self._detach = None

    def add(self, level: str, text: str) -> None:
        """Add a line."""
        self._lines.append((level, text, time.time()))

    def take(self) -> list[Line]:
        """Return the lines since the last call, from old to new."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self.add("WARNING", f"{filename}:{lineno}: {category.__name__}: {message}")
        if self._shown is not None:
            self._shown(message, category, filename, lineno, file, line)


class _Keeper(logging.Handler):
    """A handler that appends each record to a list."""

    def __init__(self, lines: deque[Line]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # a record with wrong arguments, which other handlers report
            return
        self._lines.append((record.levelname, f"{record.name}: {text}", record.created))
