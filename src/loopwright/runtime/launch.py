"""Several processes from a script or a notebook, through torch's elastic launcher."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from ..errors import ConfigurationError, LoopwrightError, check_number
from .failure import record_uncaught
from .process_group import current_group

_LAUNCHER = "LOOPWRIGHT_LAUNCHER"


class LaunchError(LoopwrightError, RuntimeError):
    """A process ended without an exception of its own: killed, or left with an exit code."""


class RankError(Exception):
    """The traceback of an exception on another process, as text; shown as the cause of that
    exception."""


def launch(
    fn: Callable[..., Any],
    *args: Any,
    processes: int = 2,
    max_restarts: int = 0,
    start_method: str | None = None,
) -> list[Any]:
    """Call `fn(*args)` on several new processes of this machine; returns their results, by rank.

    The environment of each process is as under torchrun.

    Args:
        fn: A function that the new processes can import, or one of a notebook.
        *args: Its arguments; they have to be picklable where processes are spawned.
        processes: The number of processes.
        max_restarts: How often all processes are started again after one of them failed.
        start_method: "spawn" or "fork"; by default "spawn" where the new processes can import `fn`,
            otherwise "fork".

    Raises:
        Exception: The exception of the rank that failed first, with its traceback as the cause.

    Example:
        >>> from loopwright import launch
        >>> launch(max, 2, 3, processes=2)  # doctest: +SKIP
        [3, 3]
    """
    if os.environ.get(_LAUNCHER, str(os.getpid())) != str(os.getpid()):
        raise ConfigurationError(
            "launch-in-launch",
            "launch was called in a process that launch started: put the call under `if __name__ "
            "== '__main__':`, because the new processes import your program to find the function.",
        )
    check_number("processes", processes, least=1)
    method = start_method or ("spawn" if _is_importable(fn) else "fork")
    _check_method(method, fn, args)
    with tempfile.TemporaryDirectory(prefix="loopwright-launch-") as folder, _undisturbed():
        results = _launch(method, fn, args, processes, max_restarts, folder)
    return [pickle.loads(results[rank]) for rank in range(processes)]


def _launch(
    method: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    processes: int,
    max_restarts: int,
    folder: str,
) -> dict[int, bytes]:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        start_method=method,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    try:
        results: dict[int, bytes] = elastic_launch(config, _call)(folder, fn, args)
    except ChildFailedError as error:
        _raise_first(Path(folder), error)
    return results


def _call(folder: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Run `fn` in a new process; returns its result as bytes, and leaves its exception in a
    file."""
    # after a fork the parent's threads are not here: collecting its garbage might wait for one
    gc.freeze()
    torch.set_num_threads(1)  # as torchrun sets it; it also has to be 1 after a fork
    _forget_fork_server()
    try:
        return _sendable(fn(*args))
    except Exception as error:
        group = current_group()
        if group is not None and group.world > 1:
            record_uncaught(error, group)
        _note(Path(folder), error)
        raise
    finally:
        if (group := current_group()) is not None:
            group.close()  # the process ends without running what was registered for its exit


def _forget_fork_server() -> None:
    """After a fork, drop the fork server of the parent: this process starts its own if its loader
    workers need one.

    multiprocessing keeps the parent's, waits for it as for a child of this process, and fails.
    """
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is not None and server._forkserver_pid is not None:
        # the server ends with the last process that has it open
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
        server._forkserver_address = None
        server._forkserver_pid = None


def _sendable(result: Any) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:
        raise ConfigurationError(
            "launch-result",
            f"launch: a {type(result).__name__} cannot be sent back from its process ({error}): "
            "return numbers, containers and tensors, and save the rest to files.",
        ) from None


def _note(folder: Path, error: Exception) -> None:
    """Write the exception to a file for the launcher; torch passes on only the text, and only of
    one process."""
    rank = int(os.environ["RANK"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    text = "".join(traceback.format_exception(error))
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # some exceptions are written well and cannot be read
    except Exception:
        content = pickle.dumps(LaunchError("launch-failed", f"{type(error).__name__}: {error}"))
    note = pickle.dumps((attempt, time.time(), rank, content, text))
    (folder / f"{attempt}-{rank}.unfinished").write_bytes(note)
    (folder / f"{attempt}-{rank}.unfinished").rename(folder / f"{attempt}-{rank}.error")


def _raise_first(folder: Path, failed: Any) -> NoReturn:
    """Raise the first exception of the last attempt here."""
    rank, failure = failed.get_first_failure()
    notes = [pickle.loads(path.read_bytes()) for path in folder.glob("*.error")]
    if notes:
        attempt = max(note[0] for note in notes)
        _, _, rank, content, text = min(note for note in notes if note[0] == attempt)
        raise pickle.loads(content) from RankError(f"on rank {rank}:\n\n{text}")
    how = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
    raise LaunchError(
        "rank-ended",
        f"launch: rank {rank} (process {failure.pid}) ended with {how} without an exception. Its "
        "output may say more; a process that is killed without a message has often run out of "
        "memory.",
    ) from None


def _is_importable(fn: Callable[..., Any]) -> bool:
    """Whether a new process can import the function: not one of a prompt or a notebook."""
    is_of_program = getattr(fn, "__module__", None) == "__main__"
    return not is_of_program or hasattr(sys.modules["__main__"], "__file__")


def _check_method(method: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if method == "fork":
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                "fork-after-cuda",
                "launch: a function of a notebook is called in forked processes, but CUDA was "
                "already used here, and a forked process cannot use it again. Restart the "
                "notebook and call launch before anything touches the GPU, or move the function "
                "to a file and import it.",
            )
        return
    try:
        pickle.dumps((fn, args))
    except Exception as error:
        raise ConfigurationError(
            "launch-arguments",
            f"launch: {getattr(fn, '__qualname__', fn)!r} or its arguments cannot be sent to new "
            f"processes ({error}). Define the function at the top level of a module (no lambda, "
            "no function inside a function), and create objects that cannot be sent, such as "
            "open files and loaders, inside the function.",
        ) from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore signal handlers and variables that torch's launcher sets, and keep it from logging
    what we raise."""
    changed = (_LAUNCHER, "TORCHELASTIC_SIGNALS_TO_HANDLE")
    variables = {name: os.environ.get(name) for name in changed}
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers} if is_main else {}
    names = ("torch.distributed.elastic", "torch.multiprocessing.spawn")
    logs = [logging.getLogger(name) for name in names]
    levels = [log.level for log in logs]
    os.environ[_LAUNCHER] = str(os.getpid())
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
