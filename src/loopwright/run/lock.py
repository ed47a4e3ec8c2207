"""One writer per run: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger("loopwright")

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

# Record locks belong to the process, so worker processes that outlive it do not keep them. The other side of
# that: within one process they do not exclude, and closing any descriptor of the file drops them. Hence this
# table of what this process (by its id, for forks copy the table) holds, asked before the file is touched. A file may
# have several names (links, `..`), hence its real path and its device and inode, which stay its own while it is open.
_held: dict[str | tuple[int, int], int] = {}


def is_held_here(path: Path) -> bool:
    """Whether this process holds the lock in this file, whatever name it was taken under; nothing is opened."""
    return any(_held.get(key) == os.getpid() for key in _keys(path))


def _keys(path: Path) -> list[str | tuple[int, int]]:
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError:
        return [real]
    return [real, (found.st_dev, found.st_ino)]


class RunLock:
    """A lock on a file, between processes and within this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._keys: list[str | tuple[int, int]] = []

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and any(_held.get(key) == os.getpid() for key in self._keys)

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; whether it is ours now."""
        if self.is_held:
            return True
        if is_held_here(self.path):
            return False
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                raise
            logger.warning("%s cannot be locked (%s): make sure only one process trains here.", self.path, error)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        except OSError:  # a full disk
            os.close(descriptor)
            raise
        self._descriptor, self._keys = descriptor, _keys(self.path)
        _held.update(dict.fromkeys(self._keys, os.getpid()))
        return True

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._descriptor is not None and self.is_held:
            for key in self._keys:
                _held.pop(key, None)
            os.close(self._descriptor)
        self._descriptor, self._keys = None, []

    def holder(self) -> str:
        """Who has it, in words."""
        if is_held_here(self.path):
            return f"this process ({os.getpid()}), through another trainer"
        try:
            return self.path.read_text().strip() or "another process"
        except OSError:
            return "another process"
