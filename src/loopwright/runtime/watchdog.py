"""The watchdog of training on several processes: when one rank raises or dies, all others end soon,
and in good order.

Two threads of each process look on. The listener talks to the store that all ranks share, and may
be held up there; the timekeeper only counts time, and ends the process if its main thread is stuck
in a collective that cannot finish any more. The timekeeper also reads the signals of this process
from a pipe, since no Python handler runs while the main thread is in a collective.

The states of a watched block:

- training, from its start: the main thread calls `beat` once per update; the threads send a
  heartbeat every `INTERVAL`, and look for recorded failures and dead processes.
- failed, when the block raises: the main thread records it; if it is the first, it waits for
  acknowledgements; then it raises.
- disconnected, when the block raises a communication error: the main thread waits
  `GRACE_SECONDS` for the failure of another rank, and raises `PeerFailure`, or an error that says
  where all ranks were; the threads read the other ranks' heartbeats, too.
- following, when another rank's failure is found: the main thread leaves when its collective
  fails; the threads print a line that names that rank, and end the process `GRACE_SECONDS` + 1 s
  later.
- storeless, when the store is lost: the main thread continues, and the loss may explain an error;
  the listener ends.
- terminated, after SIGTERM: the main thread finishes its update, saves, and leaves; the threads
  read heartbeats, and end the process if it and another are silent for `SILENCE_SECONDS`.
- finished, when the block ends: that is recorded, so that this rank is not missed.
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
from typing import TYPE_CHECKING

from ..errors import Interrupted
from .failure import (
    CommunicationError,
    Failure,
    FailureStore,
    PeerFailure,
    follow,
    is_communication,
    mark,
    print_now,
    wait_until_acknowledged,
    write_error_file,
)

if TYPE_CHECKING:
    from .process_group import RankGroup


class SignalPipe:
    """A pipe into which the system writes the numbers of signals to this process. For use on the
    main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = self._start()

    def _start(self) -> bool:
        """Whether the pipe is in use: not off the main thread, nor where another library reads
        signals this way."""
        if threading.current_thread() is not threading.main_thread():
            return False
        previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if previous == -1:
            return True
        signal.set_wakeup_fd(previous)
        return False

    def wait(self, seconds: float) -> bytes:
        """Wait for signals, at most for some seconds; their numbers."""
        select.select([self._reader], [], [], seconds)
        with suppress(BlockingIOError):
            return self._reader.recv(64)
        return b""

    def release(self) -> None:
        """End a `wait`."""
        with suppress(BlockingIOError):
            self._writer.send(b"\0")

    def stop(self, *, is_read: bool) -> None:
        """Stop reading signals; the pipe stays open while a thread may still read it."""
        if self._is_set:
            signal.set_wakeup_fd(-1)
        if not is_read:
            self._reader.close()
            self._writer.close()


INTERVAL = 0.25  # seconds between heartbeats
# for the main thread to leave by itself, and for other ranks to record what happened
GRACE_SECONDS = 3.0
SILENCE_SECONDS = 20.0  # without a heartbeat, after which a rank that got SIGTERM gives up another


@contextmanager
def watched(group: RankGroup) -> Iterator[Watchdog | None]:
    """End the block on all ranks when it fails on one; nothing to watch on a single rank.

    Every rank has to enter such blocks equally often.
    """
    if group.world == 1:
        yield None
        return
    watchdog = Watchdog(group)
    watchdog.start()
    try:
        yield watchdog
    except Interrupted:
        watchdog.finish()
        raise
    except BaseException as error:
        raised = watchdog.leave(error)
        if raised is error:
            raise
        raise raised from (None if isinstance(raised, PeerFailure) else error)
    else:
        watchdog.finish()
    finally:
        watchdog.stop()


class Watchdog:
    """The two threads of a watched block, and the state that they share; the table of states is
    above."""

    def __init__(self, group: RankGroup) -> None:
        group.num_watched += 1
        self.place = ""  # where the loop is, for messages; empty for the number of the update
        self._beats = 0
        self._group = group
        self._records = FailureStore(group, group.num_watched)
        self._failure: Failure | None = None
        # the store is lost: enough to explain an error, not to end a process
        self._suspicion: Failure | None = None
        self._known = threading.Event()  # a failure or a suspicion
        self._is_disconnected = False
        self._is_following = threading.Lock()
        self._has_left = False  # the main thread leaves by itself
        self._stopping = threading.Event()
        # Silence is counted in ticks of the timekeeper: while this process itself is held up, there
        # are none.
        # the store answered last at that tick
        self._tick = 0
        self._answered = 0
        # rank: its last heartbeat, and the tick it came at
        self._heartbeats: dict[int, tuple[str, int]] = {}
        self._terminated = False
        self._others = [peer for peer in group.peers if peer.rank != group.rank]
        self._threads = [
            threading.Thread(
                target=target, name=f"loopwright-{target.__name__.strip('_')}", daemon=True
            )
            for target in (self._listen, self._count_time)
        ]

    def beat(self) -> None:
        """Say that the loop is alive; once per update."""
        self._beats += 1

    def start(self) -> None:
        self._signals = SignalPipe()
        with suppress(RuntimeError):
            self._records.beat(f"0 {self._where}")
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Record that this rank ended in good order, so that the others do not miss it."""
        with suppress(RuntimeError):  # the store may have left with rank 0
            if self._store_answers:
                self._records.finish()

    def stop(self) -> None:
        self._has_left = True
        self._stopping.set()
        self._signals.release()
        for thread in self._threads:
            thread.join(timeout=1.0)  # one may be held up by a store that does not answer
        self._signals.stop(is_read=self._threads[1].is_alive())

    # The main thread, when it fails

    def leave(self, error: BaseException) -> BaseException:
        """Find out which rank failed first; returns the exception to raise."""
        self._group.has_failed = True
        if not is_communication(error):
            return self._record_own(error)
        self._is_disconnected = True
        self._known.wait(GRACE_SECONDS)
        first = self._failure or self._suspicion
        if first is None:
            return self._record_own(self._explained(error))
        self._follow(first)
        self._wait_for_first(first)
        return PeerFailure(1)

    def _record_own(self, error: BaseException) -> BaseException:
        own = Failure.of(error, self._group)
        self._has_left = True
        first = self._record(own)
        mark(error, is_first=first == own)
        if first == own:
            write_error_file(own)
            if self._store_answers:
                wait_until_acknowledged(self._records, self._group, GRACE_SECONDS)
            return error
        self._follow(first, own)
        return PeerFailure(1) if is_communication(error) else error

    def _record(self, own: Failure) -> Failure:
        try:
            return self._records.record(own) if self._store_answers else own
        except RuntimeError:
            return own

    @property
    def _store_answers(self) -> bool:
        """Whether the store has answered lately; one that does not would block this thread."""
        return self._seconds_since(self._answered) < GRACE_SECONDS

    def _seconds_since(self, tick: int) -> float:
        return (self._tick - tick) * INTERVAL

    @property
    def _where(self) -> str:
        return self.place or f"update {self._beats + 1}"

    def _explained(self, error: BaseException) -> BaseException:
        silent = self._silent(2.0)
        elsewhere = [
            f"rank {rank} at {where}"
            for rank, where in self._places().items()
            if where != self._where
        ]
        more = f" No heartbeat from {silent}." if silent else ""
        more += f" Last known positions: {', '.join(elsewhere)}." if elsewhere else ""
        explained = self._group.explain(error, self._where, more)
        explained.__cause__ = error
        return explained

    def _silent(self, seconds: float) -> str:
        """The ranks without a heartbeat for that long, or the store, in words; empty if there are
        none."""
        if self._seconds_since(self._answered) > seconds:
            return "the store that all processes share"
        ranks = [
            str(rank)
            for rank, (_, since) in list(self._heartbeats.items())
            if self._seconds_since(since) > seconds
        ]
        return f"rank {', '.join(ranks)}" if ranks else ""

    def _places(self) -> dict[int, str]:
        """Where the other ranks were at their last heartbeat."""
        beats = list(self._heartbeats.items())
        return {rank: heartbeat.partition(" ")[2] for rank, (heartbeat, _) in beats}

    def _wait_for_first(self, first: Failure) -> None:
        """Wait for the process that failed first: if another ends earlier, torchrun ends it before
        it has said why."""
        peer = self._group.peers[first.rank] if first.rank >= 0 else None
        end = time.monotonic() + GRACE_SECONDS
        while (
            peer is not None and peer.is_local() and not peer.is_gone() and time.monotonic() < end
        ):
            time.sleep(0.05)

    # The listener

    def _listen(self) -> None:
        count = 0
        while not self._stopping.wait(INTERVAL):
            count += 1
            try:
                self._records.beat(f"{count} {self._where}")
                self._look_for_failure()
                if self._terminated or self._is_disconnected:
                    self._read_heartbeats()
                self._answered = self._tick
            except RuntimeError:
                self._lose_store()
                return

    def _look_for_failure(self) -> None:
        if self._failure is not None:
            return
        found = self._records.find()
        if found is None:
            found = self._missing()
        if found is not None and found.rank != self._group.rank:
            self._learn(found)

    def _missing(self) -> Failure | None:
        """A rank of this machine whose process is gone without a record; recorded here for the
        other machines."""
        for peer in self._others:
            if peer.is_gone() and not self._records.has_finished(peer.rank):
                text = (
                    f"its process ({peer.pid} on {peer.host}) ended without a message: "
                    "killed, or out of memory"
                )
                return self._records.record(Failure(peer.rank, text))
        return None

    def _read_heartbeats(self) -> None:
        for peer in self._others:
            heartbeat = self._records.last_beat(peer.rank)
            if self._records.has_finished(peer.rank):
                self._heartbeats.pop(peer.rank, None)
            elif not heartbeat:  # it has not entered the block yet
                continue
            elif peer.rank not in self._heartbeats or self._heartbeats[peer.rank][0] != heartbeat:
                self._heartbeats[peer.rank] = (heartbeat, self._tick)

    def _lose_store(self) -> None:
        """Suspect a failure. The store may also have ended with rank 0, which keeps it, in good
        order."""
        gone = next((peer for peer in self._others if peer.is_gone()), None)
        if gone is not None:
            text = f"its process ({gone.pid} on {gone.host}) ended: killed, or out of memory"
            self._suspicion = Failure(gone.rank, text)
        else:
            text = (
                "the store that all processes share can no longer be reached: its host or the "
                "network is down"
            )
            self._suspicion = Failure(-1, text)
        self._known.set()

    def _learn(self, failure: Failure) -> None:
        self._failure = failure
        self._group.has_failed = True
        self._follow(failure)
        self._known.set()

    def _follow(self, first: Failure, own: Failure | None = None) -> None:
        """Print once that this process leaves because of another."""
        if self._is_following.acquire(blocking=False):
            if own is None and first.error.startswith(CommunicationError.__name__):
                self._show_main_thread()  # no rank raised: one did not come to a collective
            follow(first, self._group, own)
            if self._suspicion is None:
                with suppress(RuntimeError):
                    self._records.acknowledge()

    def _show_main_thread(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        print_now(f"rank {self._group.rank} is at {self._where}:\n{stack.rstrip()}")

    # The timekeeper

    def _count_time(self) -> None:
        beats = -1
        last_beat = 0
        known = 0
        while not self._stopping.is_set():
            self._terminated |= signal.SIGTERM in self._signals.wait(INTERVAL)
            self._tick += 1
            if self._beats != beats:
                beats = self._beats
                last_beat = self._tick
            if self._failure is not None and known == 0:
                known = self._tick
            if self._has_left:
                continue
            if known and self._seconds_since(known) > GRACE_SECONDS + 1.0:
                _end()
            if (
                self._terminated
                and self._seconds_since(last_beat) > SILENCE_SECONDS
                and (silent := self._silent(SILENCE_SECONDS))
            ):
                # While all others are alive, a long save is no reason to end the process.
                text = f"asked to stop (SIGTERM), but there is no heartbeat from {silent}"
                self._follow(Failure(-1, text))
                _end()


def _end() -> None:
    """End the process at once: its main thread is stuck in a call that no exception reaches."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
