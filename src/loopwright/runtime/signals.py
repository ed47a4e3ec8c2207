"""Signals while training: a handler only sets a flag, which the loop looks at after each update.

SIGTERM and the first SIGINT ask for a stop at the end of the update; a second SIGINT interrupts at once. SIGUSR1 asks
for a resume point without stopping.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Signals:
    """The flags, and the handlers that set them for as long as training lasts.

    `requested` is what this process was sent, `stop` what the loop acts on; with several processes (`is_shared`) it
    does so once all of them know.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self.stop: int | None = None
        self.wants_save = False
        self.is_shared = False
        self._previous: dict[int, Any] = {}

    @property
    def name(self) -> str:
        return signal.Signals(self.stop).name if self.stop is not None else ""

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process that the signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.stop or 0)

    def __enter__(self) -> Self:
        self.requested, self.stop, self.wants_save = None, None, False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._ask_to_stop)
            if hasattr(signal, "SIGUSR1"):
                self._previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._ask_to_save)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}
        self.requested = self.stop = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let nothing ask for a stop until the block is over; for work that a resumed run could not make up for."""
        stop, is_shared = self.stop, self.is_shared
        self.stop, self.is_shared = None, True
        try:
            yield
        finally:
            self.is_shared = is_shared
            self.stop = stop if stop is not None or is_shared else self.requested

    def take_save(self) -> bool:
        """Whether a resume point was asked for since the last time."""
        wanted, self.wants_save = self.wants_save, False
        return wanted

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number
        if not self.is_shared:
            self.stop = number

    def _ask_to_save(self, number: int, frame: FrameType | None) -> None:
        self.wants_save = True
