"""The processes that train together: which they are, and whether one on this machine is still there."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """One process, so described that another on the same machine can see whether it is still running."""

    rank: int
    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def me(cls, rank: int) -> Peer:
        return cls(rank, socket.gethostname(), _machine(), os.getpid(), _status(os.getpid())[1])

    def is_local(self) -> bool:
        """Whether its process number means something here: the same system, and the same process numbers."""
        return self.machine != "" and self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has certainly ended; never said of one on another machine."""
        if not self.is_local():
            return False
        state, started = _status(self.pid)
        return state in ("", "Z", "X") or started != self.started


def _machine() -> str:
    """The running system and its process numbers' namespace; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _status(pid: int) -> tuple[str, str]:
    """State and start time of a process, which together with its number tell it from a later one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], fields[19]
