"""Runs to look at, made once for all tests of the server that only read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .serving import Served, serving
from .small_runs import write_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, two of them in a folder of their own."""
    root = tmp_path_factory.mktemp("served") / "runs"
    write_run(root / "first", steps=50, lr=0.1)
    write_run(root / "sweep" / "width=8", steps=3000, lr=0.01, width=8)
    write_run(root / "sweep" / "width=16", steps=3000, lr=0.01, width=16, offset=1e-9)
    return root


@pytest.fixture(scope="session")
def served(runs: Path) -> Served:
    with serving(runs) as server:
        yield server
