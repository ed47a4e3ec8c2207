"""Batches from worker processes, and how workers react to signals that are sent to a whole process
group.

A terminal, torchrun, SLURM and systemd send SIGINT and SIGTERM to workers, too. The training
process decides how to react, and needs its workers to finish the update: workers ignore both
signals while it trains. Afterwards SIGTERM ends them again, which torch and multiprocessing rely
on. A worker without a parent process ends within seconds, by torch's own check.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import memmove, string_at
from dataclasses import dataclass, fields
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from tempfile import TemporaryFile
from types import FrameType
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, get_worker_info

from .._torch_compat import (
    PolledBatches,
    check_workers,
    ended_worker,
    expect_killed_workers,
    persistent_iterator,
    shut_down_workers,
    worker_signal_handlers,
    workers_of,
)
from ..errors import DataError, WaitInterrupted
from .fetch import Fetcher, Request, can_pin
from .order import WORKER, derive_seed
from .stream import MAX_BY_VALUE, Batch, Wait

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IS_POSIX = os.name == "posix"
LEAVING_SECONDS = 1.0  # for workers to end when a signal ends the program
OUT_OF_MEMORY = (
    "Most often the system ran out of memory: `dmesg` or `journalctl -k` then has a line with "
    "'Out of memory' and this process, and in a container or a SLURM job the file memory.events "
    "of its cgroup counts it as oom_kill. Use fewer workers, a smaller `prefetch_factor` or "
    "smaller batches, or ask for more memory."
)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The worker settings of a DataLoader."""

    num_workers: int = 0
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], Any] | None = None
    multiprocessing_context: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> WorkerSettings:
        return cls(**{field.name: getattr(loader, field.name) for field in fields(cls)})


class WorkerSource:
    """Sends requests to worker processes, which are started with the first batch."""

    def __init__(self, fetcher: Fetcher, settings: WorkerSettings) -> None:
        self.fetcher = fetcher
        self._settings = settings
        self._requests = _Requests()
        self._generator = torch.Generator()  # without it, a loader draws from the global generator
        self._loader: DataLoader[Any] | None = None
        self._batches: Any = None
        self.wait: Wait | None = None

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        self._generator.manual_seed(derive_seed(self.fetcher.seed, WORKER, epoch))
        self._requests.current = requests
        self._batches = None

    def next(self) -> Batch:
        try:
            if self._batches is None:
                self._batches = self._open()
            batch: Batch = next(self._batches)
        except WORKER_ERRORS as error:
            check_worker(error, self._batches)
            raise
        return batch

    def _look(self) -> None:
        if self.wait is not None and self.wait.is_asked():
            raise WaitInterrupted

    def close(self) -> None:
        batches = self._batches
        loader = self._loader
        if batches is None and loader is not None:  # persistent workers between epochs
            batches = persistent_iterator(loader)
        if batches is not None:  # shut down explicitly: a traceback may keep a reference
            # torch waits 5 s for each worker
            kill = threading.Timer(LEAVING_SECONDS, _kill, (workers_of(batches),))
            if self.wait is not None and self.wait.is_leaving:
                expect_killed_workers(batches)
                kill.start()
            shut_down_workers(batches)
            kill.cancel()
            _kill(workers_of(batches))
        self._batches = None
        self._loader = None

    def _open(self) -> Any:
        with warnings.catch_warnings():  # the user's own loader has already warned
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            if self._loader is None:
                self._loader = self._build()
            context = self._settings.multiprocessing_context or torch.multiprocessing
            with signals_blocked(context.get_start_method()):
                batches: Any = iter(self._loader)
        batches.__class__ = PolledBatches
        batches.look = self._look
        return batches

    def _build(self) -> DataLoader[Any]:
        settings = self._settings
        return DataLoader(
            self.fetcher,  # type: ignore[arg-type]  # __getitem__ is all it needs
            batch_size=None,
            sampler=self._requests,
            collate_fn=_unchanged,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory and can_pin(),
            timeout=settings.timeout,
            worker_init_fn=_WorkerStart(settings.worker_init_fn, training_flag()),
            multiprocessing_context=settings.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            in_order=settings.in_order,
        )


class _Requests:
    """The sampler of the internal DataLoader: yields the current requests."""

    current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


@dataclass(frozen=True, slots=True)
class _WorkerStart:
    """Starts a worker: signals, the user's data set in `get_worker_info()`, then the user's
    `worker_init_fn`."""

    function: Callable[[int], Any] | None
    flag: TrainingFlag | None

    def __call__(self, worker_id: int) -> None:
        leave_signals_to_trainer(self.flag)
        ForkingPickler.register(torch.Tensor, _reduce_tensor)
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # the info is frozen
        if self.function is not None:
            self.function(worker_id)


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    """Pickle a small tensor by value: a file of shared memory for each costs several times as much.

    Only a tensor that is all of its memory: others may share it, and torch keeps that.
    """
    storage = tensor.untyped_storage()
    is_small = (
        tensor.layout is torch.strided and 0 < storage.nbytes() == tensor.nbytes <= MAX_BY_VALUE
    )
    is_plain = tensor.is_cpu and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    if not is_small or not is_plain or not tensor.is_contiguous():
        return reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return _rebuild_tensor, (
        string_at(tensor.data_ptr(), tensor.nbytes),
        tensor.dtype,
        tuple(tensor.shape),
    )


def _rebuild_tensor(memory: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    memmove(tensor.data_ptr(), memory, len(memory))
    return tensor


def _kill(workers: list[Any]) -> None:
    """End workers that hang in the data set."""
    for worker in workers:
        if worker.is_alive():
            worker.kill()


# torch's own, and what a batch of a dead worker raises
WORKER_ERRORS = (RuntimeError, ConnectionError, EOFError)


def check_worker(error: BaseException, batches: object = None) -> None:
    """Raise a `DataError` that says why a worker ended and what to do, if that is the reason for an
    error. `batches` is the loader's iterator, where it is known."""
    is_torchs = isinstance(error, RuntimeError)
    found = ended_worker(error) if is_torchs else _wait_for_end(workers_of(batches))
    if found is not None:
        _reap()
        raise DataError("worker-ended", _end_of_worker(*found)) from error


@contextmanager
def workers_explained() -> Iterator[None]:
    """Context for code in which a worker of any loader may end: torch's handler of SIGCHLD raises
    in a step, too."""
    try:
        yield
    except RuntimeError as error:
        check_worker(error)
        raise


def _wait_for_end(workers: list[Any]) -> tuple[int, int | None] | None:
    """Return the worker that lost its connection, which closes before the process ends.

    Without any given, of all processes that still run: torch's handler of SIGCHLD may have said it
    in a finalizer, where Python drops errors, and then says it no more.
    """
    try:
        check_workers()
        workers = workers or multiprocessing.active_children()
        closed = wait([worker.sentinel for worker in workers], timeout=5.0)
        ended = [worker for worker in workers if worker.sentinel in closed]
        for worker in ended:
            worker.join()
    except RuntimeError as error:  # of `check_workers`, or of the handler of SIGCHLD meanwhile
        return ended_worker(error)
    return next(((worker.pid or 0, worker.exitcode) for worker in ended if worker.exitcode), None)


def _reap() -> None:
    """Reap dead workers: torch's handler of SIGCHLD would raise again, in any code, while other
    workers end."""
    is_done = False
    while not is_done:
        with suppress(RuntimeError):  # of the handler
            multiprocessing.active_children()
            is_done = True


def _end_of_worker(pid: int, code: int | None) -> str:
    """Return the message for a worker that ended unexpectedly."""
    if code is None:
        return f"A worker of the loader (process {pid}) ended unexpectedly. {OUT_OF_MEMORY}"
    if code > 0:
        return (
            f"A worker of the loader (process {pid}) exited with code {code}: code in a data set "
            "must not exit its process."
        )
    name = signal.Signals(-code).name
    advice = {
        "SIGKILL": OUT_OF_MEMORY,
        "SIGBUS": "Most often shared memory is full: use fewer workers, or make /dev/shm larger.",
    }
    return (
        f"A worker of the loader (process {pid}) was killed by {name}. "
        f"{advice.get(name, 'Check the code of the data set.')}"
    )


def _unchanged(batch: Any) -> Any:
    return batch


class TrainingFlag:
    """Whether this process trains: a byte in shared memory, read by its workers, forked or
    spawned."""

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


_flags: dict[int, TrainingFlag] = {}  # by process id: a forked process needs its own flag


def training_flag() -> TrainingFlag | None:
    """Return the flag of this process; None on systems without POSIX signals."""
    if not _IS_POSIX:
        return None
    if os.getpid() not in _flags:
        _flags.clear()
        _flags[os.getpid()] = TrainingFlag()
    return _flags[os.getpid()]


def leave_signals_to_trainer(flag: TrainingFlag | None) -> None:
    """In a worker: ignore SIGINT always, and SIGTERM while the parent process trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if flag is None:
        return

    def end_unless_training(number: int, frame: FrameType | None) -> None:
        if not flag:
            os._exit(0)

    signal.set_wakeup_fd(-1)  # inherited by fork: the parent would treat this signal as its own
    # not SIG_IGN, which child programs of the worker would inherit
    signal.signal(signal.SIGTERM, end_unless_training)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def workers_outlive_signals() -> Iterator[None]:
    """Context for training: workers that are forked inside ignore signals, also workers of loaders
    that users iterate.

    torch first gives every worker a SIGTERM handler that ends it; this replaces the handler right
    afterwards.
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
            leave_signals_to_trainer(flag)

        return set_handlers

    with worker_signal_handlers(wrap):
        flag.set(True)
        try:
            yield
        finally:
            flag.set(before)


@contextmanager
def signals_blocked(start_method: str) -> Iterator[None]:
    """Context for starting workers: spawned ones inherit this thread's signal mask and need seconds
    to start."""
    if start_method != "spawn" or not _IS_POSIX:
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise it starts below and unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
