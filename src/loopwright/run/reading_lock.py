"""Whether somebody writes to a run, asked without getting in their way."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from loopwright.run.lock import is_held_here

# `struct flock` of fcntl(2): where the kind of lock, the start, the length and the process are differs by system.
_IS_BSD = sys.platform == "darwin"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock in this file; None where the file system cannot say.

    The lock is looked at and not tried: a trainer that starts at this moment is not refused because of us.
    """
    if is_held_here(path):  # opening and closing the file would drop our own lock
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _question())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return _kind(answer) != fcntl.F_UNLCK


def lock_host(path: Path) -> str | None:
    """The machine of the process that took the lock last."""
    if is_held_here(path):
        return os.uname().nodename
    try:
        words = path.read_text(errors="replace").split()
    except OSError:
        return None
    return words[3] if len(words) == 4 and words[:3:2] == ["process", "on"] else None


def _question() -> bytes:
    """Who would be in the way of writing anything of the file?"""
    if _IS_BSD:
        return _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _kind(answer: bytes) -> int:
    kind: int = _FLOCK.unpack(answer)[3 if _IS_BSD else 0]
    return kind
