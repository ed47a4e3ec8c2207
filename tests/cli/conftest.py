"""Three finished runs, made once: two of the same seed, one of another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.gallery import train_and_be_killed, train_from_yaml, train_run
from tests.cli.helpers import make_run
from tests.cli.projects import project, shell, trained, trained_once  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `first`, `again` (the same) and `other` (another seed); only to be
    read."""
    folder = tmp_path_factory.mktemp("finished")
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        make_run(folder / name, seed)
    return folder


@pytest.fixture
def own_run(finished: Path, tmp_path: Path) -> Path:
    """A run of the test's own, to be damaged."""
    return Path(shutil.copytree(finished / "first", tmp_path / "run"))


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in every state, below `runs`; only to be read."""
    folder = tmp_path_factory.mktemp("gallery")
    for number, how in enumerate(("finished", "stopped", "failed", "interrupted")):
        train_run(folder / "runs" / how, number, how=how)
    train_run(folder / "runs" / "deep" / "twin", 0)
    train_and_be_killed(folder / "runs" / "killed")
    return folder


@pytest.fixture
def in_gallery(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the current folder, as most people work; what a command writes goes elsewhere."""
    monkeypatch.chdir(gallery)
    return gallery


@pytest.fixture(scope="session")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs from one config, the second of which has another width."""
    folder = tmp_path_factory.mktemp("configured")
    train_from_yaml(folder)
    train_from_yaml(folder, "model.width=16")
    return folder
