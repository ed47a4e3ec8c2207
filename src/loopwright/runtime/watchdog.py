"""A guarded stretch of training: whoever raises or dies in it ends all the others soon, and in good order.

Two threads look on. One talks to the store that all processes share, and may be held up there; the other only keeps
time, and ends the process if its main thread is stuck in a collective that cannot finish any more.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from ..errors import Interrupted
from .failure import (
    CommunicationError,
    Failure,
    Ledger,
    PeerFailure,
    follow,
    is_communication,
    linger,
    mark,
    tell,
    write_error_file,
)

if TYPE_CHECKING:
    from .process_group import Group


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


INTERVAL = 0.25
PATIENCE = 3.0  # seconds for the main thread to leave by itself, and for others to say what happened
SILENCE = 20.0  # seconds without a sign of life after which one who was asked to stop gives another up


class Guard(Protocol):
    """What the loop holds while it is guarded."""

    place: str
    """Where the loop is, for messages; empty for the number of the update."""

    def beat(self) -> None:
        """A sign of life of the loop, once in an update."""


class _Alone:
    """The guard of a single process: nobody to look after."""

    def __init__(self) -> None:
        self.place = ""

    def beat(self) -> None:
        pass


@contextmanager
def guarded(group: Group | None) -> Iterator[Guard]:
    """Training inside ends on all processes when it fails on one. Every process has to come here equally often."""
    if group is None or group.world == 1:
        yield _Alone()
        return
    watch = Watch(group)
    watch.start()
    try:
        yield watch
    except Interrupted:
        watch.finish()
        raise
    except BaseException as error:
        raised = watch.leave(error)
        if raised is error:
            raise
        raise raised from (None if isinstance(raised, PeerFailure) else error)
    else:
        watch.finish()
    finally:
        watch.stop()


class Watch:
    """The two threads, and what they know."""

    def __init__(self, group: Group) -> None:
        group.num_guards += 1
        self.place = ""
        self._beats = 0
        self._group = group
        self._ledger = Ledger(group, group.num_guards)
        self._failure: Failure | None = None
        self._suspicion: Failure | None = None  # the store is lost: enough to explain an error, not to end anyone
        self._known = threading.Event()  # one of the two
        self._is_in_trouble = False
        self._told = threading.Lock()
        self._has_left = False  # the main thread is on its way out by itself
        self._stopping = threading.Event()
        # Silence is counted in rounds of the time keeper: where this process itself was held up, they are as well.
        self._round = self._heard = 0
        self._signs: dict[int, tuple[str, int]] = {}  # rank: its last sign of life, and since when it is the last
        self._terminated = False
        self._others = [peer for peer in group.peers if peer.rank != group.rank]
        self._threads = [
            threading.Thread(target=target, name=f"loopwright-{target.__name__.strip('_')}", daemon=True)
            for target in (self._listen, self._keep_time)
        ]

    def beat(self) -> None:
        self._beats += 1

    def start(self) -> None:
        self._wakeup = Wakeup()
        with suppress(RuntimeError):
            self._ledger.beat(f"0 {self._where}")
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """The end in good order: whoever leaves now is not missed."""
        with suppress(RuntimeError):  # the store may have left with rank 0
            if self._is_heard:
                self._ledger.finish()

    def stop(self) -> None:
        self._has_left = True
        self._stopping.set()
        self._wakeup.release()
        for thread in self._threads:
            thread.join(timeout=1.0)  # one may be held up by a store that does not answer
        self._wakeup.stop(is_read=self._threads[1].is_alive())

    # The main thread, when it fails

    def leave(self, error: BaseException) -> BaseException:
        """Settle who failed first; what to raise."""
        self._group.has_failed = True
        if not is_communication(error):
            return self._settle(error)
        self._is_in_trouble = True
        self._known.wait(PATIENCE)
        first = self._failure or self._suspicion
        if first is None:
            return self._settle(self._explained(error))
        self._follow(first)
        self._wait_for_first(first)
        return PeerFailure(1)

    def _settle(self, error: BaseException) -> BaseException:
        own = Failure.of(error, self._group)
        self._has_left = True
        first = self._record(own)
        mark(error, is_first=first == own)
        if first == own:
            write_error_file(own)
            if self._is_heard:
                linger(self._ledger, self._group, PATIENCE)
            return error
        self._follow(first, own)
        return PeerFailure(1) if is_communication(error) else error

    def _record(self, own: Failure) -> Failure:
        try:
            return self._ledger.record(own) if self._is_heard else own
        except RuntimeError:
            return own

    @property
    def _is_heard(self) -> bool:
        """Whether the store answers; one that does not would hold us up."""
        return self._seconds_since(self._heard) < PATIENCE

    def _seconds_since(self, number: int) -> float:
        return (self._round - number) * INTERVAL

    @property
    def _where(self) -> str:
        return self.place or f"update {self._beats + 1}"

    def _explained(self, error: BaseException) -> BaseException:
        silent = self._silent(2.0)
        elsewhere = [f"rank {rank} at {where}" for rank, where in self._places().items() if where != self._where]
        more = f" No sign of life from {silent}." if silent else ""
        more += f" Last heard of: {', '.join(elsewhere)}." if elsewhere else ""
        explained = self._group.explain(error, self._where, more)
        explained.__cause__ = error
        return explained

    def _silent(self, seconds: float) -> str:
        """Who gave no sign of life for so long, in words; empty if all did."""
        if self._seconds_since(self._heard) > seconds:
            return "the store that all processes share"
        ranks = [str(rank) for rank, (_, since) in list(self._signs.items()) if self._seconds_since(since) > seconds]
        return f"rank {', '.join(ranks)}" if ranks else ""

    def _places(self) -> dict[int, str]:
        """Where the other processes said they were, those that were heard of."""
        return {rank: sign.partition(" ")[2] for rank, (sign, _) in list(self._signs.items())}

    def _wait_for_first(self, first: Failure) -> None:
        """Let the first to fail be the first to leave: torchrun ends it before it has said why, otherwise."""
        peer = self._group.peers[first.rank] if first.rank >= 0 else None
        end = time.monotonic() + PATIENCE
        while peer is not None and peer.is_local() and not peer.is_gone() and time.monotonic() < end:
            time.sleep(0.05)

    # The thread that listens

    def _listen(self) -> None:
        count = 0
        while not self._stopping.wait(INTERVAL):
            count += 1
            try:
                self._ledger.beat(f"{count} {self._where}")
                self._look_for_failure()
                if self._terminated or self._is_in_trouble:
                    self._look_for_signs()
                self._heard = self._round
            except RuntimeError:
                self._lose_store()
                return

    def _look_for_failure(self) -> None:
        if self._failure is not None:
            return
        found = self._ledger.find()
        if found is None:
            found = self._missing()
        if found is not None and found.rank != self._group.rank:
            self._learn(found)

    def _missing(self) -> Failure | None:
        """A process on this machine that is gone without a word; noted on its behalf, for those elsewhere too."""
        for peer in self._others:
            if peer.is_gone() and not self._ledger.has_finished(peer.rank):
                text = f"its process ({peer.pid} on {peer.host}) is gone without a word: killed, or out of memory"
                return self._ledger.record(Failure(peer.rank, text, "", time.time(), peer.machine))
        return None

    def _look_for_signs(self) -> None:
        for peer in self._others:
            sign = self._ledger.last_beat(peer.rank)
            if self._ledger.has_finished(peer.rank):
                self._signs.pop(peer.rank, None)
            elif not sign:  # it has not come here yet
                continue
            elif peer.rank not in self._signs or self._signs[peer.rank][0] != sign:
                self._signs[peer.rank] = (sign, self._round)

    def _lose_store(self) -> None:
        """Without the store nobody can be asked. It may have left with rank 0, who keeps it, in good order."""
        gone = next((peer for peer in self._others if peer.is_gone()), None)
        if gone is not None:
            text = f"its process ({gone.pid} on {gone.host}) is gone: killed, or out of memory"
            self._suspicion = Failure(gone.rank, text, "", time.time(), gone.machine)
        else:
            text = "the store that all processes share cannot be reached any more: its host, or the network, is gone"
            self._suspicion = Failure(-1, text, "", time.time())
        self._known.set()

    def _learn(self, failure: Failure) -> None:
        self._failure = failure
        self._group.has_failed = True
        self._follow(failure)
        self._known.set()

    def _follow(self, first: Failure, own: Failure | None = None) -> None:
        """Say once that this process leaves because of another."""
        if self._told.acquire(blocking=False):
            if own is None and first.error.startswith(CommunicationError.__name__):
                self._show_main_thread()  # nobody raised: whoever did not come to a collective is the reason
            follow(first, self._group, own)
            if self._suspicion is None:
                with suppress(RuntimeError):
                    self._ledger.acknowledge()

    def _show_main_thread(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        tell(f"rank {self._group.rank} is at {self._where}:\n{stack.rstrip()}")

    # The thread that keeps time

    def _keep_time(self) -> None:
        beats, alive, known = -1, 0, 0
        while not self._stopping.is_set():
            self._terminated |= signal.SIGTERM in self._wakeup.wait(INTERVAL)
            self._round += 1
            if self._beats != beats:
                beats, alive = self._beats, self._round
            if self._failure is not None and known == 0:
                known = self._round
            if self._has_left:
                continue
            if known and self._seconds_since(known) > PATIENCE + 1.0:
                _end()
            if self._terminated and self._seconds_since(alive) > SILENCE and (silent := self._silent(SILENCE)):
                # Saving for long is no reason to be ended: that is, when all others are still there.
                text = f"asked to stop (SIGTERM), and there is no sign of life from {silent}"
                self._follow(Failure(-1, text, "", time.time()))
                _end()


def _end() -> None:
    """Leave at once: the main thread is stuck in a call that no exception reaches."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
