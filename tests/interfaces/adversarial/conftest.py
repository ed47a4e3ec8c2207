"""One set of tiny images for all tests of the interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from .runs import write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("images"))
