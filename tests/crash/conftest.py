"""Places to train in, and processes to do it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .crashing import Processes
from .filesystems import mounted, other_filesystem


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


@pytest.fixture(scope="module")
def other_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on another filesystem than the temporary files."""
    with other_filesystem(tmp_path_factory.mktemp("other")) as path:
        if path is None:
            pytest.skip("there is no other filesystem, and none can be mounted")
        yield path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that is soon full."""
    path = tmp_path / "disk"
    with mounted(path, "2m") as is_mounted:
        if not is_mounted:
            pytest.skip("no tmpfs can be mounted here")
        yield path
