"""Waiting for data: between two updates a signal may end it, and a long wait is reported."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

from .._torch_compat import awaited_worker
from ..data.fetch import Fetcher
from ..data.random import RngTracker
from ..data.stream import MAY_BE_LEFT, WAITS
from ..errors import WaitInterrupted

REPORT_SECONDS = 60.0  # without a batch, after which that is reported
LOOKS = 4  # within these seconds
LIBRARIES = ("loopwright", "torch")


class DataWait:
    """What ends a wait for data, and a thread that reports a long one; the step itself does nothing
    for either.

    Code that builds a batch in this process is left where it is: its generators are restored, and
    no position has moved. A wait for worker processes looks at `is_asked` a few times a second.
    """

    def __init__(self, run: Any) -> None:
        self.has_raised = False
        self.is_leaving = False
        self._run = run  # a `TrainingRun`, which imports this module
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.has_raised = False
        self.is_leaving = False
        self._over.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loopwright-wait", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def is_asked(self) -> bool:
        """Whether a wait is to end now: a signal requested a stop, and nothing defers it."""
        return bool(self._run.is_interrupted)

    def request(self, name: str, frame: FrameType | None) -> None:
        """Say that a signal requests a stop, and leave the code that builds a batch; called by the
        signal's handler."""
        self.is_leaving = True
        first, second = ("Interrupted", "interrupt") if name == "SIGINT" else (name, name)
        line = (
            f"{first}: stopping after this update; a second {second} stops at once, without saving."
        )
        try:
            self._run.say(line)
        except RuntimeError:  # it came while a line was being printed
            os.write(2, f"{line}\n".encode())
        if self.is_asked() and _builds_batch(frame):
            self.has_raised = True
            raise WaitInterrupted

    def _watch(self, thread: int) -> None:
        """Look a few times a minute whether the loop still waits for the same batch."""
        position = None
        looks = 0
        while not self._over.wait(REPORT_SECONDS / LOOKS):
            before = position
            position = self._position()
            awaited = _awaited(sys._current_frames().get(thread))
            looks = looks + 1 if awaited and position == before else 0
            if awaited and looks == LOOKS:
                self._report(awaited)

    def _position(self) -> tuple[Any, ...]:
        run = self._run
        return run.progress.step, len(run.metrics.phases), run.current_meter.num_pending

    def _report(self, awaited: str) -> None:
        line = f"No batch for {REPORT_SECONDS:g} s: {awaited}"
        if self._run.runtime.is_main:
            self._run.say(line)
        else:
            from ..runtime.failure import print_now

            print_now(f"Rank {self._run.runtime.rank}: {line}")


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _builds_batch(frame: FrameType | None) -> bool:
    """Whether the loop waits for code that builds a batch, inside of what restores the generators
    afterwards."""
    is_building = False
    for call in _stack(frame):
        caller = call.f_back
        if call.f_code in (Fetcher._build.__code__, Fetcher._fetch.__code__) and caller is not None:
            is_building = is_building or caller.f_code is RngTracker.run.__code__
        if call.f_code in MAY_BE_LEFT:
            return is_building
    return False


def _awaited(frame: FrameType | None) -> str:
    """Say what the loop waits for, and how to look into it; an empty text where it does not wait
    for data."""
    own = None
    for call in _stack(frame):
        if (worker := awaited_worker(call)) is not None:
            return (
                f"process {worker.pid}, a worker of the loader, has not returned it. `py-spy dump "
                f"--pid {worker.pid}` shows where it is."
            )
        if str(call.f_globals.get("__name__")).partition(".")[0] not in LIBRARIES:
            own = call  # in the end, the one that the library called
        if call.f_code in WAITS:
            shown = own or frame
            assert shown is not None
            name = shown.f_code.co_qualname
            place = f"{shown.f_code.co_filename}:{shown.f_lineno}"
            return (
                f"{name} has not returned ({place}). `py-spy dump --pid {os.getpid()}` shows "
                "where it is."
            )
    return ""
