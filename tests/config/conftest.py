"""A project in an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.config.projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(autouse=True)
def path_is_left_as_it_was():
    before = list(sys.path)
    yield
    assert sys.path == before
