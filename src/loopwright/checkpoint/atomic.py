"""Files that are complete or absent: staged beside their destination, made durable, then
renamed."""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

CHUNK = 16 << 20
STALE_AFTER_SECONDS = 24 * 3600.0
LEFTOVERS = {"tmp": 2, "old": 2, "group": 3}  # kinds of hidden siblings, and how many words follow
AT_FDCWD = -100
RENAME_EXCHANGE = 2

_in_use: set[Path] = set()  # what this process is writing now; process ids may be used again
# of directories that are being filled: their files, open until they are synced
_unsynced: dict[Path, list[int]] = {}
_tokens: set[str] = set()  # of the groups that this process leads
# how often a process of a group wrote to a place
_rounds: Counter[tuple[Path, str, int]] = Counter()


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and hash of a file, as its manifest states them."""

    size: int
    sha256: str


class HashingFile:
    """A new file that is hashed while it is written and durable once closed; in a staged directory,
    once that is."""

    def __init__(self, path: Path) -> None:
        self._later = _unsynced.get(path.parent)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self._hash.update(chunk)
            while chunk:
                chunk = chunk[os.write(self._descriptor, chunk) :]
        self._size += len(view)

    def record(self) -> FileRecord:
        return FileRecord(self._size, self._hash.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._later is not None:
            self._later.append(self._descriptor)
            return
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def write_bytes(path: Path, data: bytes) -> FileRecord:
    """A new durable file with these bytes."""
    with HashingFile(path) as file:
        file.write(data)
    return file.record()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_together(descriptors: list[int]) -> None:
    """Make files and directories durable at the same time: on a slow disk every sync takes
    seconds."""
    errors: list[OSError] = []

    def sync(descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as error:
            errors.append(error)

    threads: list[threading.Thread] = []
    try:
        for descriptor in descriptors[1:]:
            thread = threading.Thread(target=sync, args=(descriptor,))
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # the system, or a program that ends, starts no more threads
                sync(descriptor)
        sync(descriptors[0])
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@contextmanager
def staged_file(destination: Path) -> Iterator[Path]:
    """A path to write to, which replaces the destination in one step if nothing is raised."""
    # what a link leads to is written, and the link stays
    destination = Path(os.path.realpath(destination))
    destination.parent.mkdir(parents=True, exist_ok=True)
    clean_leftovers(destination.parent, destination.name)
    staging = _hidden_sibling(destination, "tmp")
    _in_use.add(staging)
    try:
        yield staging
        os.replace(staging, destination)
        sync_directory(destination.parent)
    finally:
        staging.unlink(missing_ok=True)
        _in_use.discard(staging)


@contextmanager
def staged_directory(
    destination: Path, shared: Path | None = None, ready: Callable[[], object] | None = None
) -> Iterator[Path]:
    """A directory to fill, which replaces the destination in one step if nothing is raised.

    A `shared` one may be there already, with what other processes put into it. The files are synced
    together, and the directory with them: nothing of it has its name yet. Then `ready` returns once
    it may appear.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    staging = shared or _hidden_sibling(destination, "tmp")
    _in_use.add(staging)
    clean_leftovers(destination.parent, destination.name)
    unsynced: list[int] = []
    _unsynced[staging] = unsynced
    try:
        staging.mkdir(exist_ok=shared is not None)
        yield staging
        unsynced.append(os.open(staging, os.O_RDONLY))
        _sync_together(unsynced)
        if ready is not None:
            ready()
        _put_in_place(staging, destination)
        sync_directory(destination.parent)
    finally:
        del _unsynced[staging]
        for descriptor in unsynced:
            os.close(descriptor)
        shutil.rmtree(staging, ignore_errors=True)
        _in_use.discard(staging)


def new_token() -> str:
    """Make a name for the checkpoints that several processes write together.

    The process of rank 0 makes it and broadcasts it to the others. It belongs to that process:
    files that the group left half-written are removed by the next start once the process is gone.

    Example:
        >>> import os
        >>> from loopwright.checkpoint import new_token
        >>> new_token().startswith(f"{os.getpid()}-")
        True
    """
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    _tokens.add(token)
    return token


def shared_staging(destination: Path, token: str, rank: int) -> Path:
    """Where the processes of a group put their parts: the same place in all of them, another one
    each time."""
    assert token, "processes that write together need a token: see `new_token`"
    _rounds[destination, token, rank] += 1
    return destination.with_name(
        f".{destination.name}.group-{token}-{_rounds[destination, token, rank]}"
    )


def remove_directory(path: Path) -> None:
    """Take a directory away in one step, so that a kill leaves no half of it under its name."""
    doomed = _hidden_sibling(path, "tmp")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clean_leftovers(directory: Path, wanted: str | None = None) -> list[str]:
    """Remove what killed processes left in a directory, put back what they had set aside; the
    names.

    With `wanted`, only what they left of that file or directory.
    """
    cleaned = []
    for hidden in sorted(
        name for name in os.listdir(directory) if name.startswith(".") and name.count("-") >= 2
    ):
        path = directory / hidden
        name, _, tail = hidden[1:].rpartition(".")
        kind, *rest = tail.split("-")
        if (
            wanted not in (None, name)
            or LEFTOVERS.get(kind) != len(rest)
            or not _is_abandoned(path, *rest[:2])
        ):
            continue
        if kind == "old" and not (directory / name).exists():
            os.rename(path, directory / name)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        cleaned.append(path.name)
    return cleaned


def _put_in_place(staging: Path, destination: Path) -> None:
    """Rename over the destination; where a directory is there, exchange the two."""
    if not destination.is_dir():
        os.rename(staging, destination)
    elif not _exchange(staging, destination):
        # Filesystems that cannot exchange: `clean_leftovers` puts the old one back after a kill in
        # between.
        aside = _hidden_sibling(destination, "old")
        os.rename(destination, aside)
        os.rename(staging, destination)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    paths = (os.fsencode(first), os.fsencode(second))
    return bool(renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0)


def _hidden_sibling(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{os.getpid()}-{secrets.token_hex(4)}")


def _is_abandoned(path: Path, process: str, key: str) -> bool:
    if path in _in_use or f"{process}-{key}" in _tokens or not process.isdecimal():
        return False
    if int(process) == os.getpid():
        return True
    with suppress(PermissionError):
        try:
            os.kill(int(process), 0)
        except (ProcessLookupError, OverflowError):
            return True
    try:
        return time.time() - path.lstat().st_mtime > STALE_AFTER_SECONDS
    except OSError:
        return False
