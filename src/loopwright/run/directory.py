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
from types import TracebackType
from typing import Self

from ..checkpoint.atomic import clean_leftovers
from ..checkpoint.layout import read_limited
from ..checkpoint.manifest import local_path
from ..errors import CheckpointError, ConfigurationError

logger = logging.getLogger("loopwright")

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

# Record locks belong to the process, so worker processes that outlive it do not keep them. The other
# side of that: within one process they do not exclude, and closing any descriptor of the file drops
# them. Hence this table of what this process (by its id, for forks copy the table) holds, asked
# before the file is touched. A file may have several names (links, `..`), hence its real path and
# its device and inode, which stay its own while it is open.
_held: dict[str | tuple[int, int], int] = {}


def is_held_here(path: Path) -> bool:
    """Whether this process holds the lock in this file, whatever name it was taken under; nothing
    is opened."""
    return any(_held.get(key) == os.getpid() for key in _keys(path))


def _keys(path: Path) -> list[str | tuple[int, int]]:
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError:
        return [real]
    return [real, (found.st_dev, found.st_ino)]


# `struct flock` of fcntl(2): the order of its fields differs by system
_IS_BSD = sys.platform == "darwin"
_FLOCK = struct.Struct("qqihh" if _IS_BSD else "hhqqi4x")


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock in this file; None where the file system cannot say.

    The lock is looked at and not tried: a trainer that starts at this moment is not refused because
    of us.
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
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _lock_query())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind: int = _FLOCK.unpack(answer)[3 if _IS_BSD else 0]
    return kind != fcntl.F_UNLCK


def lock_host(path: Path) -> str | None:
    """The machine of the process that took the lock last."""
    if is_held_here(path):
        return os.uname().nodename
    try:
        words = read_limited(path).decode(errors="replace").split()
    except (CheckpointError, OSError):
        return None
    return words[3] if len(words) == 4 and words[:3:2] == ["process", "on"] else None


def _lock_query() -> bytes:
    """The `struct flock` that asks who would block a write lock on the whole file."""
    if _IS_BSD:
        return _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class RunLock:
    """A lock on a file, between processes and within this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._keys: list[str | tuple[int, int]] = []

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and any(
            _held.get(key) == os.getpid() for key in self._keys
        )

    def try_acquire(self) -> bool:
        """Take the lock if it is free; whether this process holds it now."""
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
            logger.warning(
                "%s cannot be locked (%s): make sure only one process trains here.",
                self.path,
                error,
            )
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
        """Release the lock, if this process holds it."""
        if self._descriptor is not None and self.is_held:
            for key in self._keys:
                _held.pop(key, None)
            os.close(self._descriptor)
        self._descriptor = None
        self._keys = []

    def holder(self) -> str:
        """The process that holds the lock, as text."""
        if is_held_here(self.path):
            return f"this process ({os.getpid()}), through another trainer"
        try:
            return read_limited(self.path).decode(errors="replace").strip() or "another process"
        except (CheckpointError, OSError):
            return "another process"


MANIFEST = "run.json"
CONFIG = "config.yaml"
METRICS = "metrics.sqlite"
LOG = "log.txt"
DIFF = "code.diff"
LOCK = ".lock"
FILES = (CONFIG, DIFF, LOG, METRICS)
FOLDERS = ("checkpoints", "kept", "artifacts")
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
        self.path = local_path(path, "run_dir").absolute()
        self._refuse_others((METRICS,) if records_only else FILES)
        with self.starting():
            for folder in (
                self.path,
                *(() if records_only else (self.path / name for name in FOLDERS)),
            ):
                folder.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self.path / LOCK)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The directory of an existing run, for reading; nothing is created."""
        directory = cls.__new__(cls)
        directory.path = Path(path).absolute()
        directory._lock = RunLock(directory.path / LOCK)
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
                directory._lock.release()
        raise AssertionError("there is always another number")

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def log_path(self) -> Path:
        return self.path / LOG

    @property
    def diff_path(self) -> Path:
        return self.path / DIFF

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def kept(self) -> Path:
        return self.path / "kept"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    @property
    def has_run(self) -> bool:
        """Whether a run was started here."""
        return self.manifest_path.is_file()

    @property
    def is_locked(self) -> bool:
        """Whether this process holds the lock of this directory."""
        return self._lock.is_held

    def lock(self) -> Self:
        """Lock the directory for this process; the error names the process that holds the lock."""
        if not self._take():
            raise ConfigurationError(
                "run-is-locked",
                f"Run directory {self.path} is being written by {self._lock.holder()}: wait for "
                "it, stop it, or choose another `run_dir`.",
            )
        return self

    def _take(self) -> bool:
        """Take the lock if it is free, and then remove the half-written files of killed
        processes."""
        with self.starting():
            is_ours = self._lock.try_acquire()
            for folder in (self.path, *(self.path / name for name in FOLDERS)) if is_ours else ():
                if folder.is_dir():
                    clean_leftovers(folder)
        return is_ours

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Turn errors of the file system at the start of a run into errors that name a remedy."""
        try:
            yield
        except OSError as error:
            remedy = f"{REMEDIES[error.errno]}, or " if error.errno in REMEDIES else ""
            raise ConfigurationError(
                "unusable-run-dir",
                f"{self.path} cannot be a run directory ({error}): {remedy}choose another "
                "`run_dir`.",
            ) from error

    def _refuse_others(self, files: tuple[str, ...]) -> None:
        """Raise where other files have names that a run would overwrite."""
        found = [name for name in (MANIFEST, LOCK, *files) if (self.path / name).exists()]
        folders = [name for name in found if not (self.path / name).is_file()]
        if folders:
            raise ConfigurationError(
                "folder-for-file",
                f"{self.path} cannot be a run directory ({folders[0]} in it is not a file): move "
                "that away, or choose another `run_dir`.",
            )
        if found and LOCK not in found and MANIFEST not in found:
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
        for name in (
            "media",
            *(f"{METRICS}{ending}" for ending in ("", "-wal", "-shm")),
            MANIFEST,
        ):
            if (self.path / name).exists():
                (self.path / name).rename(earlier / name)
        return earlier

    def unlock(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self.lock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.unlock()


FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

run_logger = logging.getLogger("loopwright.run")


@contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    """Append all log records to a file inside the context; yields the logger for the run's own
    lines.

    Warnings that a program without log handlers prints are still printed, except the run's own
    lines, which reach the user in other ways.
    """
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(FORMAT))
    level = run_logger.level
    run_logger.setLevel(logging.INFO)
    detach = attach(handler)
    try:
        yield run_logger
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
