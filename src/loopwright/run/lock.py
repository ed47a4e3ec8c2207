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
# table of what this process (by its id, for forks copy the table) holds, asked before the file is touched.
_held: dict[Path, int] = {}


class RunLock:
    """A lock on a file, between processes and within this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and _held.get(self.path) == os.getpid()

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; whether it is ours now."""
        if self.is_held:
            return True
        if _held.get(self.path) == os.getpid():
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
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        self._descriptor = descriptor
        _held[self.path] = os.getpid()
        return True

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._descriptor is not None and self.is_held:
            del _held[self.path]
            os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> str:
        """Who has it, in words."""
        if _held.get(self.path) == os.getpid():
            return f"this process ({os.getpid()}), through another trainer"
        try:
            return self.path.read_text().strip() or "another process"
        except OSError:
            return "another process"
