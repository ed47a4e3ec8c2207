"""The directory of one run: the paths of its files, and the lock of the process that writes
them."""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ..checkpoint.atomic import clean_leftovers
from ..checkpoint.layout import read_limited
from ..checkpoint.manifest import local_path
from ..errors import CheckpointError, ConfigurationError

logger = logging.getLogger("loopwright")

MANIFEST = "run.json"
CONFIG = "config.yaml"
METRICS = "metrics.sqlite"
LOG = "log.txt"
DIFF = "code.diff"
LOCK = ".lock"
FILES = (CONFIG, DIFF, LOG, METRICS)
FOLDERS = ("checkpoints", "kept", "artifacts")
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
# `struct flock` of fcntl(2): the order of its fields differs by system
_IS_BSD = sys.platform == "darwin"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")

# Record locks belong to the process, so worker processes that outlive it do not keep them. The other
# side of that: within one process they do not exclude, and closing any descriptor of the file drops
# them. Hence this table of what this process (by its id, for forks copy the table) holds, asked
# before the file is opened; by device and inode, since a file may have several names.
_held: dict[tuple[int, int], int] = {}


def is_held_here(path: Path) -> bool:
    """Whether this process holds the lock in this file, whatever name it was taken under; nothing
    is opened."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return _held.get((found.st_dev, found.st_ino)) == os.getpid()


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock in this file; None where the file system cannot say.

    The lock is looked at and not tried: a trainer that starts at this moment is not refused because
    of us.
    """
    if is_held_here(path):  # opening and closing the file would drop our own lock
        return True
    fields = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    query = _FLOCK.pack(*(0, 0, 0, *fields[:2]) if _IS_BSD else fields)
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, query)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    kind: int = _FLOCK.unpack(answer)[3 if _IS_BSD else 0]
    return kind != fcntl.F_UNLCK


def lock_host(path: Path) -> str | None:
    """The machine of the process that took the lock last."""
    if is_held_here(path):
        return os.uname().nodename
    words = _lock_text(path).split()
    return words[3] if len(words) == 4 and words[:3:2] == ["process", "on"] else None


def _lock_text(path: Path) -> str:
    """What a lock says of the process that took it; nothing where it cannot be read."""
    try:
        return read_limited(path).decode(errors="replace").strip()
    except (CheckpointError, OSError):
        return ""


REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable"),
}


def not_a_run(path: Path) -> ConfigurationError:
    """The error about a directory that no run has written."""
    return ConfigurationError("not-a-run", f"{path} is not a run directory: it has no {MANIFEST}.")


class RunDirectory:
    """A run's directory, created where it does not exist.

    ```
    run.json         versions, machine, seed, progress, state
    config.yaml      the resolved config it was started from, beside the user's own modules
    code.diff        uncommitted changes of the code
    log.txt          the log
    metrics.sqlite   every metric of every step and epoch, events, log lines
    media/           logged images
    checkpoints/     resume points
    kept/            best models
    artifacts/       anything else
    ```

    Args:
        path: The directory; an error where it holds other things that a run would overwrite.
        records_only: Whether nothing is written to it but manifest, metrics and media, so that it
            may hold other files.

    Example:
        >>> import tempfile
        >>> from loopwright.run import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with RunDirectory(f"{folder}/first") as run:  # locked: no other process may write to it
        ...         run.kept.is_dir(), run.has_run
        (True, False)
    """

    def __init__(self, path: str | os.PathLike[str], *, records_only: bool = False) -> None:
        self._use(local_path(path, "run_dir").absolute())
        self._refuse_others((METRICS,) if records_only else FILES)
        with self.starting():
            self.path.mkdir(parents=True, exist_ok=True)
            for name in () if records_only else FOLDERS:
                (self.path / name).mkdir(exist_ok=True)

    def _use(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / MANIFEST
        self.config_path = path / CONFIG
        self.log_path = path / LOG
        self.diff_path = path / DIFF
        self.metrics_path = path / METRICS
        self.checkpoints = path / "checkpoints"
        self.kept = path / "kept"
        self.artifacts = path / "artifacts"
        # of the lock, while it is held: its descriptor, and its device and inode
        self._lock: tuple[int, tuple[int, int]] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The directory of an existing run, for reading; nothing is created."""
        directory = cls.__new__(cls)
        directory._use(Path(path).absolute())
        if not directory.has_run:
            raise not_a_run(directory.path)
        return directory

    @classmethod
    def fresh(cls, path: str | os.PathLike[str], *, records_only: bool = False) -> Self:
        """A directory without a run in it, locked: this path, or the first free of `name-2`,
        `name-3`, ...

        Two processes that ask at once get two directories, since each must win the lock to have
        one.
        """
        wanted = Path(path).absolute()
        siblings = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
        for candidate in itertools.chain([wanted], siblings):
            if (candidate / MANIFEST).exists():
                continue
            directory = cls(candidate, records_only=records_only)
            if directory._take():
                if not directory.has_run:
                    return directory
                RunDirectory.unlock(directory)  # whatever a subclass does there
        raise AssertionError("there is always another number")

    @property
    def has_run(self) -> bool:
        """Whether a run was started here."""
        return self.manifest_path.is_file()

    @property
    def is_locked(self) -> bool:
        """Whether this process holds the lock of this directory."""
        return self._lock is not None and _held.get(self._lock[1]) == os.getpid()

    def lock(self) -> Self:
        """Lock the directory for this process; the error names the process that holds the lock."""
        if not self._take():
            lock = self.path / LOCK
            if is_held_here(lock):  # reading the file would drop our own lock
                holder = f"this process ({os.getpid()}), through another trainer"
            else:
                holder = _lock_text(lock) or "another process"
            raise ConfigurationError(
                "run-is-locked",
                f"Run directory {self.path} is being written by {holder}: wait for it, stop it, or "
                "choose another `run_dir`.",
            )
        return self

    def _take(self) -> bool:
        """Take the lock if it is free, and then remove the half-written files of killed
        processes."""
        with self.starting():
            is_ours = self.is_locked or self._acquire()
            for name in ("", *FOLDERS) if is_ours else ():
                if (self.path / name).is_dir():
                    clean_leftovers(self.path / name)
        return is_ours

    def _acquire(self) -> bool:
        lock = self.path / LOCK
        if is_held_here(lock):
            return False
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                logger.warning(
                    "%s cannot be locked (%s): make sure only one process trains here.", lock, error
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        found = os.fstat(descriptor)
        key = (found.st_dev, found.st_ino)
        self._lock = descriptor, key
        _held[key] = os.getpid()
        return True

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Turn errors of the file system at the start of a run into errors that name a remedy."""
        try:
            yield
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "mend that")
            raise ConfigurationError(
                "unusable-run-dir",
                f"{self.path} cannot be a run directory ({error}): {remedy}, or choose another "
                "`run_dir`.",
            ) from error

    def _refuse_others(self, files: tuple[str, ...]) -> None:
        """Raise where other files have names that a run would overwrite."""
        found = [name for name in (MANIFEST, LOCK, *files) if (self.path / name).exists()]
        is_run = any((self.path / name).is_file() for name in (LOCK, MANIFEST))
        if found and not is_run:
            raise ConfigurationError(
                "run-dir-taken",
                f"{self.path} is not a run directory, but it contains {' and '.join(found)}, "
                "which a run would overwrite: choose another `run_dir`, such as a new folder "
                "inside it.",
            )

    def set_aside(self) -> Path:
        """Move manifest, metrics and media to a folder inside, so that another run can be recorded
        here."""
        folders = (self.path / f"earlier-run-{number}" for number in itertools.count(1))
        earlier = next(folder for folder in folders if not folder.exists())
        earlier.mkdir()
        for name in ("media", METRICS, f"{METRICS}-wal", f"{METRICS}-shm", MANIFEST):
            if (self.path / name).exists():
                (self.path / name).rename(earlier / name)
        return earlier

    def unlock(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock is not None and self.is_locked:
            descriptor, key = self._lock
            del _held[key]
            os.close(descriptor)
        self._lock = None

    def __enter__(self) -> Self:
        return self.lock()

    def __exit__(self, *_: object) -> None:
        self.unlock()


FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

run_logger = logging.getLogger("loopwright.run")


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Append all log records to a file inside the context.

    Warnings that a program without log handlers prints are still printed, except the run's own
    lines, which reach the user in other ways.
    """
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(FORMAT))
    level = run_logger.level
    run_logger.setLevel(logging.INFO)
    detach = attach(handler)
    try:
        yield
    finally:
        detach()
        handler.close()
        run_logger.setLevel(level)


def attach(handler: logging.Handler) -> Callable[[], None]:
    """Give all log records to a handler too; what is returned ends that. What is printed without it
    still is."""
    root = logging.getLogger()
    handlers = [handler]
    if not root.handlers:
        # python does that itself only as long as there is no other handler
        handlers.append(_printing())
    for added in handlers:
        root.addHandler(added)

    def detach() -> None:
        for added in handlers:
            root.removeHandler(added)

    return detach


def _printing() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.name != run_logger.name)
    return handler


def shown(path: Path) -> Path:
    """A path for messages: relative to the working directory where it is below it."""
    here = Path.cwd()
    path = path.absolute()
    return path.relative_to(here) if path.is_relative_to(here) else path
