"""Signals for a thread that waits: known at once, also while the main thread is in a call that holds handlers up."""

from __future__ import annotations

import select
import signal
import socket
import threading
from contextlib import suppress


class Wakeup:
    """A pipe into which the system writes the signals this process gets. Start and stop it on the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = self._start()

    def _start(self) -> bool:
        """Not where somebody else has the signals written for them, or off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if previous == -1:
            return True
        signal.set_wakeup_fd(previous)
        return False

    def wait(self, seconds: float) -> bytes:
        """The numbers of signals that came, at the latest after so many seconds."""
        select.select([self._reader], [], [], seconds)
        with suppress(BlockingIOError):
            return self._reader.recv(64)
        return b""

    def release(self) -> None:
        """Let whoever waits go on."""
        with suppress(BlockingIOError):
            self._writer.send(b"\0")

    def stop(self, *, is_read: bool) -> None:
        """No more signals; the pipe stays open where a thread may still be reading it."""
        if self._is_set:
            signal.set_wakeup_fd(-1)
        if not is_read:
            self._reader.close()
            self._writer.close()
