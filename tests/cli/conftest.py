"""Three finished runs, made once: two of the same seed, one of another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_helpers import make_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `first`, `again` (the same) and `other` (another seed); only to be read."""
    folder = tmp_path_factory.mktemp("finished")
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        make_run(folder / name, seed)
    return folder


@pytest.fixture
def own_run(finished: Path, tmp_path: Path) -> Path:
    """A run of the test's own, to be damaged."""
    return Path(shutil.copytree(finished / "first", tmp_path / "run"))
