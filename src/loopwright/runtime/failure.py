"""What is told about a failing process: to the others through the store, to torchrun in its error file, to the user.

The first to fail is the one whose traceback matters. The others would only say that they lost a connection, so they
leave with one line that names the first.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, but not in torch's type hints

from ..errors import LoopwrightError

if TYPE_CHECKING:
    from .process_group import Group

_SIGNS = ("gloo", "nccl", "connection closed by peer", "connection reset", "broken pipe", "socket")
_LATER_SECONDS = 10


class CommunicationError(LoopwrightError, RuntimeError):
    """A collective timed out, or lost a process, and nobody said why."""


class PeerFailure(SystemExit):
    """Another process failed first, and this one has nothing to add. Leaves the program with 1, without a traceback."""


def is_communication(error: BaseException) -> bool:
    """Whether an error is about the connection to other processes, and so maybe the consequence of another's."""
    if isinstance(error, (CommunicationError, dist.DistError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Who failed first, and of what."""

    rank: int
    error: str
    traceback: str
    time: float
    machine: str = ""

    @classmethod
    def of(cls, error: BaseException, group: Group) -> Failure:
        text = "".join(traceback.format_exception(error))
        return cls(group.rank, describe(error), text, time.time(), group.peers[group.rank].machine)

    def line(self, rank: int) -> str:
        """What another rank says when it leaves because of this."""
        who = f"rank {self.rank} failed: " if self.rank >= 0 else ""
        return f"rank {rank} leaves: {who}{self.error.strip().splitlines()[0]}"


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Ledger:
    """The notes of one guarded stretch of training in the store that all processes share."""

    def __init__(self, group: Group, number: int) -> None:
        self._store = PrefixStore(f"guard{number}", group.store)
        self._rank = group.rank

    def record(self, failure: Failure) -> Failure:
        """Note a failure; the first one noted is returned, which may be another's."""
        return _parse(self._store.compare_set("failure", "", json.dumps(asdict(failure))))

    def find(self) -> Failure | None:
        return _parse(self._store.get("failure")) if self._store.check(["failure"]) else None

    def acknowledge(self) -> None:
        """This process knows of the failure, and has said its line."""
        self._store.add("told", 1)

    def num_told(self) -> int:
        return self._store.add("told", 0)

    def finish(self) -> None:
        """This process came to the end in good order."""
        self._store.set(f"finished{self._rank}", "1")

    def has_finished(self, rank: int) -> bool:
        return self._store.check([f"finished{rank}"])

    def beat(self, sign: str) -> None:
        """A sign of life: a text that differs from the last one."""
        self._store.set(f"beat{self._rank}", sign)

    def last_beat(self, rank: int) -> str:
        """The last sign of life of a process; empty where it never gave one."""
        key = f"beat{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _parse(text: bytes) -> Failure:
    return Failure(**json.loads(text))


def write_error_file(failure: Failure) -> None:
    """Where torchrun looks for what it shows at the end: the failure with the earliest time is the root cause."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))}
    with open(path, "w") as file:
        json.dump({"message": {"message": failure.error, "extraInfo": extra}}, file)


def write_follower_file(first: Failure, group: Group, own: Failure | None = None) -> None:
    """The error file of a process that left because of another.

    torchrun counts times in whole seconds and notices an end only at its next look, so this one's is put well after.
    On another machine torchrun has no file of the first, so its traceback is told there as well.
    """
    line = first.line(group.rank)
    is_here = first.machine == group.peers[group.rank].machine
    told = own.traceback if own is not None else ""
    text = line if is_here or not first.traceback else f"{line}\n{first.traceback}"
    write_error_file(replace(first, error=line, traceback=f"{told}{text}", time=first.time + _LATER_SECONDS))


def tell(line: str) -> None:
    """A line on stderr at once, whatever state the interpreter is in."""
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def linger(ledger: Ledger, group: Group, seconds: float) -> None:
    """Wait until all others know, so that what is printed next is last, and torchrun sees this process leave first."""
    end = time.monotonic() + seconds
    others = [peer for peer in group.peers if peer.rank != group.rank]
    while time.monotonic() < end:
        try:
            if ledger.num_told() >= sum(not (peer.is_gone() or ledger.has_finished(peer.rank)) for peer in others):
                return
        except RuntimeError:  # the store is gone, and nobody can be told
            return
        time.sleep(0.05)


def install_hook(group: Group) -> None:
    """Record an error that ends the program outside of training, and keep the traceback of a follower back."""
    if group.world == 1:
        return
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if group.is_closed or settle(error, group):
            previous(kind, error, trace)

    sys.excepthook = hook


def settle(error: BaseException, group: Group) -> bool:
    """Note an error that nobody caught; whether its traceback is to be shown."""
    noted = _marked(error)
    if noted is not None:
        return noted
    group.has_failed = True
    ledger = Ledger(group, group.num_guards + 1)  # the others may be there already, waiting for this one
    own = Failure.of(error, group)
    try:
        first = ledger.record(own)
    except RuntimeError:
        write_error_file(own)
        return True
    if first == own:
        write_error_file(own)
        linger(ledger, group, seconds=2.0)
        return True
    follow(first, group, own)
    ledger.acknowledge()
    return False


def mark(error: BaseException, *, is_first: bool) -> None:
    """Note on an error that it went through a guard, and what was found there, for the hook if nobody catches it."""
    error._loopwright_first = is_first  # type: ignore[attr-defined]


def _marked(error: BaseException | None) -> bool | None:
    """The mark of an error, or of the one it was raised from."""
    while error is not None:
        if "_loopwright_first" in vars(error):
            return bool(vars(error)["_loopwright_first"])
        error = error.__cause__ or error.__context__
    return None


def follow(first: Failure, group: Group, own: Failure | None = None) -> None:
    """Say that this process leaves because of another, and what it would have said itself if that is different."""
    differs = own is not None and own.error != first.error and not own.error.startswith(CommunicationError.__name__)
    tell(first.line(group.rank) + (f" (its own error: {own.error})" if own is not None and differs else ""))
    write_follower_file(first, group, own)
