"""Workers of loaders under signals that are sent to all processes of a group.

A terminal, torchrun, SLURM and systemd send SIGINT or SIGTERM to workers too. What to do about it is up to the process
that trains, which needs its workers to get to the end of an update: they pass over both for as long as it trains.
Afterwards SIGTERM ends them again, which is how torch and multiprocessing get rid of them. A worker whose parent is
gone notices it within seconds, since torch lets it look.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from types import FrameType
from typing import Any

from .._torch_compat import worker_signal_handlers

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IS_POSIX = os.name == "posix"


class TrainingFlag:
    """Whether this process trains: a byte that it writes and that its workers, forked or spawned, read."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        if memory is None:
            with TemporaryFile() as file:
                file.truncate(1)
                memory = mmap.mmap(file.fileno(), 1)
                self._descriptor = os.dup(file.fileno())  # for spawned workers
        self._memory = memory

    def __bool__(self) -> bool:
        return self._memory[0] != 0

    def set(self, value: bool) -> None:
        self._memory[0] = int(value)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _attach, (DupFd(self._descriptor),)


def _attach(duplicate: Any) -> TrainingFlag:
    descriptor = duplicate.detach()
    try:
        return TrainingFlag(mmap.mmap(descriptor, 1))
    finally:
        os.close(descriptor)


_flags: dict[int, TrainingFlag] = {}  # by process id: a forked process must not share the flag of its parent


def training_flag() -> TrainingFlag | None:
    """The flag of this process; None where signals are not sent to groups of processes."""
    if not _IS_POSIX:
        return None
    if os.getpid() not in _flags:
        _flags.clear()
        _flags[os.getpid()] = TrainingFlag()
    return _flags[os.getpid()]


def pass_over_signals(flag: TrainingFlag | None) -> None:
    """In a worker: let SIGINT and SIGTERM be the business of the process that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if flag is None:
        return

    def end_unless_training(number: int, frame: FrameType | None) -> None:
        if not flag:
            os._exit(0)

    signal.set_wakeup_fd(-1)  # a forked worker has its parent's, who would take this signal for its own
    signal.signal(signal.SIGTERM, end_unless_training)  # not SIG_IGN, which programs that the worker starts inherit
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def workers_outlive_signals() -> Iterator[None]:
    """Around training: workers that are forked meanwhile pass over signals, also those of loaders that users iterate.

    torch gives every worker a SIGTERM handler first of all, which would end it; ours comes right after that.
    """
    flag = training_flag()
    if flag is None:
        yield
        return
    before = bool(flag)

    def wrap(original: Callable[[], None]) -> Callable[[], None]:
        def set_handlers() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            original()
            pass_over_signals(flag)

        return set_handlers

    with worker_signal_handlers(wrap):
        flag.set(True)
        try:
            yield
        finally:
            flag.set(before)


@contextmanager
def signals_held_back(start_method: str) -> Iterator[None]:
    """Around the start of workers: spawned ones begin with this thread's signal mask and need seconds to get ready."""
    if start_method != "spawn" or not _IS_POSIX:
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # or it is started below, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
