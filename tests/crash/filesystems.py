"""Filesystems to train on: one of its own in memory, mounted where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def mounted(path: Path, size: str) -> Iterator[bool]:
    """A tmpfs of this size at the path; False where none can be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    is_mounted = (
        shutil.which("mount") is not None
        and not subprocess.run(command, capture_output=True).returncode
    )
    try:
        yield is_mounted
    finally:
        if is_mounted:  # lazily: workers that lost their parent take some seconds to notice
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def other_filesystem(path: Path) -> Iterator[Path | None]:
    """A folder that is not on the filesystem of temporary files: mounted at the path, else in
    shared memory."""
    with mounted(path, "512m") as is_mounted:
        if is_mounted:
            yield path
        elif SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
            with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
                yield Path(folder)
        else:
            yield None
