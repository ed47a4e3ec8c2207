"""Reports of a failing process: to the other ranks through the store, to torchrun in its error
file, to the user.

The traceback that matters is that of the rank that failed first. The others have only lost a
connection, so they leave with one line that names that rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import torch.distributed as dist

# public, but not in torch's type hints
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from ..errors import LoopwrightError

if TYPE_CHECKING:
    from .process_group import RankGroup

_SIGNS = ("gloo", "nccl", "connection closed by peer", "connection reset", "broken pipe", "socket")


class CommunicationError(LoopwrightError, RuntimeError):
    """A collective timed out, or lost a process, and no rank has recorded why."""


class PeerFailure(SystemExit):
    """Another process failed first, and this one has nothing to add. Leaves the program with 1,
    without a traceback."""


def is_communication(error: BaseException) -> bool:
    """Whether an error is about the connection to other ranks, and so maybe the consequence of
    another rank's."""
    if isinstance(error, (CommunicationError, dist.DistError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)


@dataclass(frozen=True, slots=True)
class Failure:
    """The rank that failed first, and its error; rank -1 if it is not known."""

    rank: int
    error: str
    traceback: str = ""
    time: float = 0.0

    @classmethod
    def of(cls, error: BaseException, group: RankGroup) -> Failure:
        words = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        return cls(group.rank, words, text, time.time())

    def line(self, rank: int) -> str:
        """The line that another rank prints when it leaves because of this failure."""
        who = f"rank {self.rank} failed: " if self.rank >= 0 else ""
        return f"rank {rank} stops: {who}{self.error.strip().splitlines()[0]}"


class FailureStore:
    """The records of one watched block in the store that all ranks share: first failure,
    heartbeats, finished ranks."""

    def __init__(self, group: RankGroup, number: int) -> None:
        self._store = PrefixStore(f"watched{number}", group.store)
        self._rank = group.rank

    def record(self, failure: Failure) -> Failure:
        """Record a failure, unless there is one; returns the first, which may be another rank's."""
        return _parse(self._store.compare_set("failure", "", json.dumps(asdict(failure))))

    def find(self) -> Failure | None:
        """The recorded failure, if there is one."""
        return _parse(self._store.get("failure")) if self._store.check(["failure"]) else None

    def acknowledge(self) -> None:
        """Record that this rank knows of the failure and has printed its line."""
        self._store.add("acknowledged", 1)

    def num_acknowledged(self) -> int:
        return self._store.add("acknowledged", 0)

    def finish(self) -> None:
        """Record that this rank has left the block in good order."""
        self._store.set(f"finished{self._rank}", "1")

    def has_finished(self, rank: int) -> bool:
        return self._store.check([f"finished{rank}"])

    def beat(self, text: str) -> None:
        """Send a heartbeat: a text that differs from the last one."""
        self._store.set(f"beat{self._rank}", text)

    def last_beat(self, rank: int) -> str:
        """The last heartbeat of a rank; empty before the first."""
        key = f"beat{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _parse(text: bytes) -> Failure:
    return Failure(**json.loads(text))


def write_error_file(failure: Failure) -> None:
    """Write the file from which torchrun shows the root cause: the failure with the earliest
    time, in whole seconds. Processes that end because of it end later."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time) - 1)}
    with open(path, "w") as file:
        json.dump({"message": {"message": failure.error, "extraInfo": extra}}, file)


def print_now(line: str) -> None:
    """Print a line to stderr at once, whatever state the interpreter is in."""
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def wait_until_acknowledged(records: FailureStore, group: RankGroup, seconds: float) -> None:
    """Wait until all other ranks know, so that the traceback comes last and torchrun sees this
    process end first."""
    end = time.monotonic() + seconds
    others = [peer for peer in group.peers if peer.rank != group.rank]
    while time.monotonic() < end:
        try:
            waiting = [peer for peer in others if not peer.is_gone()]
            waiting = [peer for peer in waiting if not records.has_finished(peer.rank)]
            if records.num_acknowledged() >= len(waiting):
                return
        except RuntimeError:  # the store is gone
            return
        time.sleep(0.05)


def install_hook(group: RankGroup) -> None:
    """Record an error that ends the program outside of training; of a rank that follows it, print
    no traceback."""
    if group.world == 1:
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if group.is_closed or record_uncaught(error, group):
            previous(kind, error, trace)

    sys.excepthook = hook


def record_uncaught(error: BaseException, group: RankGroup) -> bool:
    """Record an uncaught error; whether its traceback is to be shown."""
    is_first = _marked(error)
    if is_first is not None:
        return is_first
    group.has_failed = True
    records = FailureStore(group, group.num_watched + 1)  # where the others may be waiting already
    own = Failure.of(error, group)
    try:
        first = records.record(own)
    except RuntimeError:
        write_error_file(own)
        return True
    if first == own:
        write_error_file(own)
        wait_until_acknowledged(records, group, seconds=2.0)
        return True
    follow(first, group, own)
    records.acknowledge()
    return False


def mark(error: BaseException, *, is_first: bool) -> None:
    """Mark an error that left a watched block with whether it was the first, for the hook that
    handles it uncaught."""
    error._loopwright_first = is_first  # type: ignore[attr-defined]


def _marked(error: BaseException | None) -> bool | None:
    """The mark of an error, or of the one it was raised from."""
    while error is not None:
        if "_loopwright_first" in vars(error):
            return bool(vars(error)["_loopwright_first"])
        error = error.__cause__ or error.__context__
    return None


def follow(first: Failure, group: RankGroup, own: Failure | None = None) -> None:
    """Print that this process leaves because of another, and its own error if that is a different
    one."""
    line = first.line(group.rank)
    if own is not None and own.error != first.error:
        is_lost_connection = own.error.startswith(CommunicationError.__name__)
        line += "" if is_lost_connection else f" (its own error: {own.error})"
    print_now(line)
