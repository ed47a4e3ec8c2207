"""Several real processes for a test: forked, so that they start in a twentieth of a second.

`run_ranks(fn, world, *args)` calls `fn(rank, *args)` in each and returns what they return, by rank.
They meet as under torchrun: its environment variables are set, and the store is kept by a process
that is none of them.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from loopwright.runtime.process_group import current_group

LIMIT = 300.0
RunRanks = Callable[..., list[Any]]  # fn, world, *args -> what each rank returned
# torch looks up the name of each host that connects, and a name server that does not answer would
# hold that up for 5 s.
RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:1"}


@dataclass
class Ended:
    """How a rank ended: its exit code (negative for a signal), what it returned or raised, and its
    stderr."""

    rank: int
    code: int | None = None
    value: Any = None
    error: str = ""
    stderr: str = ""
    at: float = 0.0


def run_ranks(fn: Callable[..., Any], world: int, *args: Any, limit: float = LIMIT) -> list[Any]:
    """What `fn(rank, *args)` returns on each of `world` processes; raises what the first of them
    raised, with all."""
    ended = start_ranks(fn, world, *args, limit=limit)
    failed = [rank for rank in ended if rank.code != 0]
    if failed:
        reports = [
            f"rank {rank.rank} ended with "
            f"{rank.code}:\n{rank.error or '(it raised nothing)'}\n{rank.stderr[-4000:]}"
            for rank in failed
        ]
        raise AssertionError("\n".join(reports))
    return [rank.value for rank in ended]


def start_ranks(
    fn: Callable[..., Any], world: int, *args: Any, limit: float = LIMIT
) -> list[Ended]:
    """Like `run_ranks`, for ranks that may fail: how each ended. Whoever is stuck is killed and
    reported."""
    with _kept_store() as port:
        ranks = [_fork(fn, rank, world, port, args, limit) for rank in range(world)]
        try:
            return _collect(ranks, time.monotonic() + limit)
        finally:
            for rank in ranks:
                rank.kill()


class SharedRanks:
    """Processes of one group that call one function after the other, which saves starting new ones
    for each.

    For functions that leave nothing behind in their process. After one that fails, there are new
    processes.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self._ends: list[Connection] = []
        self._ranks: list[_Rank] = []
        self._store = ExitStack()

    def __call__(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """What `fn(rank, *args)` returns on each process; raises what the first of them raised,
        with all."""
        if not self._ranks:
            self._start()
        for end in self._ends:
            end.send_bytes(pickle.dumps((fn, args)))  # `send` would share the memory of tensors
        try:
            return [self._receive(end, time.monotonic() + LIMIT) for end in self._ends]
        except EOFError:
            ended = _collect(self._ranks, time.monotonic() + 20.0)
            raise AssertionError(
                "\n".join(f"{rank.error}\n{rank.stderr[-4000:]}" for rank in ended)
            ) from None
        except BaseException:
            self._kill()
            raise
        finally:
            if any(rank.pid is None for rank in self._ranks):
                self._kill()

    def close(self) -> None:
        """End the processes."""
        if self._ranks:
            for end in self._ends:
                end.send_bytes(pickle.dumps(None))
            _collect(self._ranks, time.monotonic() + LIMIT)
            self._kill()

    def _start(self) -> None:
        port = self._store.enter_context(_kept_store())
        for rank in range(self.world):
            own, other = Pipe()
            self._ranks.append(
                _fork(_serve, rank, self.world, port, (other, [*self._ends, own]), LIMIT)
            )
            self._ends.append(own)
            other.close()

    def _receive(self, end: Connection, limit: float) -> Any:
        while not end.poll(0.01):
            _drain(self._ranks, 0.0)
            if time.monotonic() > limit:
                _report_stuck(self._ranks)
            if any(
                os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                for rank in self._ranks
            ):
                raise EOFError  # another one has failed, for which this one may wait
        return pickle.loads(end.recv_bytes())

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for end in self._ends:
            end.close()
        self._ranks, self._ends = [], []
        self._store.close()


def _serve(rank: int, tasks: Connection, of_parent: list[Connection]) -> None:
    for end in of_parent:
        end.close()
    while (task := pickle.loads(tasks.recv_bytes())) is not None:
        fn, args = task
        faulthandler.dump_traceback_later(LIMIT - 3.0, file=sys.stderr)
        tasks.send_bytes(pickle.dumps(fn(rank, *args)))


@contextmanager
def _kept_store() -> Iterator[int]:
    """The port of a store in a process of its own: its threads must not run here while ranks are
    forked."""
    port, ports = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.environ |= RESOLVER
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(ports, str(store.port).encode())
        while True:
            signal.pause()
    try:
        yield int(os.read(port, 16))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(port)
        os.close(ports)


class _Rank:
    """One forked process, and the pipes it answers on."""

    def __init__(self, rank: int, pid: int, answer: int, stderr: int) -> None:
        self.ended = Ended(rank)
        self.pid: int | None = pid
        self.pipes = {answer: bytearray(), stderr: bytearray()}
        self.answer, self.stderr = answer, stderr

    def kill(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = {}

    def finish(self, status: int) -> None:
        self.pid = None
        self.ended.code, self.ended.at = os.waitstatus_to_exitcode(status), time.time()

    def read(self) -> Ended:
        lines = self.pipes[self.stderr].decode(errors="replace").splitlines(keepends=True)
        self.ended.stderr = "".join(
            line for line in lines if "The hostname of the client socket" not in line
        )
        if answer := bytes(self.pipes[self.answer]):
            self.ended.value, self.ended.error = pickle.loads(answer)
        return self.ended


def _fork(
    fn: Callable[..., Any], rank: int, world: int, port: int, args: tuple[Any, ...], limit: float
) -> _Rank:
    answer, answers = os.pipe()
    stderr, stderrs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(answers)
        os.close(stderrs)
        os.set_blocking(answer, False)
        os.set_blocking(stderr, False)
        return _Rank(rank, pid, answer, stderr)
    # the parent's garbage may hold stores whose threads are not here: collecting it would wait for
    # them
    gc.freeze()
    os.dup2(stderrs, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # where it is stuck, for the report
    faulthandler.dump_traceback_later(max(limit - 3.0, 1.0), file=sys.stderr)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **RESOLVER,
    }
    os._exit(_run(fn, rank, args, answers))  # nothing of the parent's is torn down here


def _run(fn: Callable[..., Any], rank: int, args: tuple[Any, ...], answers: int) -> int:
    torch.set_num_threads(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    value, error, code = None, "", 0
    try:
        value = fn(rank, *args)
        _part()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        error, code = traceback.format_exc(), 1
    try:
        answer = pickle.dumps((value, error))
    except Exception as unsendable:
        answer, code = (
            pickle.dumps((None, f"What rank {rank} returned cannot be sent: {unsendable}")),
            1,
        )
    with os.fdopen(answers, "wb") as pipe:
        pipe.write(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _part() -> None:
    """Leave together: the first rank to leave would close connections that others still use.

    A group that the test itself made is not destroyed, which now and then hangs in gloo: the
    process ends anyway.
    """
    group = current_group()
    if group is not None:
        group.close()
    if dist.is_initialized():
        store, world = _get_default_store(), dist.get_world_size()
        if store.add("left", 1) == world:
            store.set("all left", "")
        store.wait(["all left"])


def _collect(ranks: list[_Rank], end: float) -> list[Ended]:
    while any(rank.pid is not None for rank in ranks):
        if time.monotonic() > end:
            _report_stuck(ranks)
        _drain(ranks, 0.01)
        for rank in ranks:
            if rank.pid is not None:
                pid, status = os.waitpid(rank.pid, os.WNOHANG)
                if pid:
                    rank.finish(status)
    _drain(ranks, 0.0)
    return [rank.read() for rank in ranks]


def _drain(ranks: list[_Rank], seconds: float) -> None:
    """Read all pipes, so that no rank waits because its pipe is full."""
    pipes = {pipe: rank for rank in ranks for pipe in rank.pipes if pipe >= 0}
    ready, _, _ = select.select(list(pipes), [], [], seconds)
    for pipe in ready:
        while True:
            try:
                chunk = os.read(pipe, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            pipes[pipe].pipes[pipe] += chunk


def _report_stuck(ranks: list[_Rank]) -> None:
    stuck = [rank for rank in ranks if rank.pid is not None]
    output = "\n".join(_last_words(rank) for rank in ranks)
    raise AssertionError(
        f"ranks {[rank.ended.rank for rank in stuck]} did not end in time and were "
        f"killed.\n{output}"
    )


def _last_words(rank: _Rank) -> str:
    """How a rank ended, or where it is stuck: of a long traceback the innermost calls, which come
    first."""
    ended = rank.read()
    state = "is stuck" if rank.pid is not None else f"ended with {ended.code}"
    return f"rank {ended.rank} {state}:\n{ended.error}{ended.stderr[:3000]}"
