"""What `loopwright doctor` finds out about files and memory: how fast they are, and how much room there is."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Disk:
    """The folder that a run would be written to; speeds in bytes per second."""

    folder: str
    file_system: str | None
    free: int
    write_speed: float | None  # with fsync; None where nothing can be written
    sync_seconds: float | None  # of a small file
    copy_speed: float  # of memory, which is what a step waits for when a checkpoint is saved
    problem: str | None = None

    def write_seconds(self, size: int) -> float | None:
        """How long a checkpoint takes to be on disk."""
        return None if self.write_speed is None else size / self.write_speed

    def stall_seconds(self, size: int) -> float:
        """How long a step waits for a checkpoint that is written behind the training."""
        return size / self.copy_speed


@dataclass(frozen=True, slots=True)
class Workers:
    """What processes that load data have to live with."""

    start_method: str
    shared_memory: int | None  # bytes free in /dev/shm
    open_files: int


def probe_disk(folder: Path, *, quick: bool) -> Disk:
    """Write and sync a file in the folder, and remove it."""
    size = (4 if quick else 64) << 20
    speed = seconds = problem = None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".loopwright-doctor-") as file:
            seconds = _write(file.fileno(), b"x" * 4096)
            speed = size / max(_write(file.fileno(), os.urandom(1 << 20) * (size >> 20)), 1e-9)
    except OSError as error:
        problem = str(error)
    free = shutil.disk_usage(folder).free
    return Disk(str(folder), file_system_of(folder), free, speed, seconds, _copy_speed(size), problem)


def probe_workers() -> Workers:
    free = shutil.disk_usage(SHM).free if SHM.is_dir() else None
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return Workers(method, free, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def file_system_of(folder: Path, table: str = "/proc/self/mounts") -> str | None:
    """The kind of file system a folder is on, where the system lists them."""
    try:
        lines = Path(table).read_text(errors="replace").splitlines()
    except OSError:
        return None
    mounts = [words for line in lines if len(words := line.split()) > 2]
    where = folder.resolve()
    around = [words for words in mounts if where.is_relative_to(words[1].replace("\\040", " "))]
    return max(around, key=lambda words: len(words[1]))[2] if around else None


def _write(descriptor: int, data: bytes) -> float:
    start = time.perf_counter()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    return time.perf_counter() - start


def _copy_speed(size: int) -> float:
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    start = time.perf_counter()
    target.copy_(source)
    return size / max(time.perf_counter() - start, 1e-9)
