"""Signals during training: a handler sets a flag, which the loop reads after each update and while
it waits for data.

The first SIGTERM or SIGINT requests a stop at the end of the update; a second SIGINT interrupts at
once, and a second SIGTERM ends the process, unless it is saving already. SIGUSR1 requests a resume
point without stopping. A stop that was requested after the last update, and on which the loop has
not acted, takes effect when training is over: the signal is raised again, without the handlers of
training.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Self

REPEAT_SECONDS = (
    2.0  # in which another SIGTERM is the same request: torchrun passes on what the whole group got
)


class Signals:
    """The flags, and the handlers that set them during training.

    `requested` is the signal that this process got, `stop` the one that the loop acts on. On
    several ranks (`is_shared`), `stop` is set by the consensus, at the same update on all of them.
    `on_request` is called in the handler, with the signal's name and the frame that it interrupts,
    and may raise where that is safe.
    """

    def __init__(self, on_request: Callable[[str, FrameType | None], None] | None = None) -> None:
        self._on_request = on_request
        self._requested_at = 0.0
        self.is_saving = False  # whether the loop has acted on the signal
        self.requested: int | None = None
        self.stop: int | None = None
        self.wants_save = False
        self.is_shared = False
        self.is_handling = False
        self._previous: dict[int, Any] = {}

    @property
    def name(self) -> str:
        return signal.Signals(self.stop).name if self.stop is not None else ""

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.stop or 0)

    def __enter__(self) -> Self:
        self.requested = None
        self.stop = None
        self.wants_save = False
        self.is_handling = True
        self.is_saving = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request_stop)
            if hasattr(signal, "SIGUSR1"):
                self._previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._request_save)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Restore the earlier handlers, which then get a signal that came too late for the loop to
        act on.

        An exception that leaves the block is the end of the run, by that signal or another cause.
        """
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = {}
        requested = self.requested
        self.requested = None
        self.stop = None
        self.is_handling = False
        if requested is not None and error is None:
            signal.raise_signal(requested)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer stop requests to the end of the block; for work that a resumed run could not
        repeat."""
        stop = self.stop
        is_shared = self.is_shared
        self.stop = None
        self.is_shared = True
        try:
            yield
        finally:
            self.is_shared = is_shared
            self.stop = stop if stop is not None or is_shared else self.requested

    def release_interrupt(self) -> None:
        """Let SIGINT raise KeyboardInterrupt at once until the end of training, as without handlers
        of ours."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def take_save(self) -> bool:
        """Whether a resume point was requested since the last call."""
        wanted = self.wants_save
        self.wants_save = False
        return wanted

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            if not self.is_saving and monotonic() - self._requested_at > REPEAT_SECONDS:
                _end_at_once(number)
            return
        self.requested, self._requested_at = number, monotonic()
        if not self.is_shared:
            self.stop = number
        if self._on_request is not None:
            self._on_request(signal.Signals(number).name, frame)

    def _request_save(self, number: int, frame: FrameType | None) -> None:
        self.wants_save = True


def _end_at_once(number: int) -> None:
    """End this process by the signal, and the workers of loaders, of which one that hangs would
    stay."""
    from multiprocessing import active_children

    if hasattr(signal, "SIGCHLD"):
        # torch's handler raises for a worker that is killed
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(number, signal.SIG_DFL)
    try:
        for child in active_children():
            if child.daemon:
                child.kill()
    finally:
        signal.raise_signal(number)
