"""A project as a person has it, a run file with a module beside it, and commands in its folder."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main

MODULE = Path(__file__).with_name("point_parts.py").read_text()
CONFIG = """\
seed: 3
name: points
model:
  kind: cli_project.Net
  width: ${vars.width}
  optimizer: {kind: AdamW, lr: 0.01}
vars:
  width: 8
datasets:
  train: {kind: cli_project.Points, n: 24}
  test: {kind: cli_project.Points, n: 10}
trainer:
  kind: cli_project.PointTrainer
  max_epochs: 2
  effective_batch_size: 8
  forward_properties: [x]
  target_properties: [y]
"""
BEST = """\
  callbacks:
    - {kind: OfflineLoss, dataset_key: test, every_n_epochs: 1}
    - {kind: BestCheckpoint, metric: test_loss, every_n_epochs: 1}
    - {kind: Checkpoints, every_epochs: 1}
"""


class Project:
    """A folder with `run.yaml` and `cli_project.py`, which is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("cli_project.py", MODULE)
        self.write("run.yaml", CONFIG)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def runs(self, name: str = "points") -> list[Path]:
        """Oldest first; ids are unordered within a second."""
        found = (self.folder / "runs" / name).glob("*")
        return sorted(found, key=lambda run: json.loads((run / "run.json").read_text())["created"])


class Shell:
    """Commands in this process: their exit codes, and what they printed."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        self._capture.readouterr()
        code = main([str(argument) for argument in arguments])
        self.out, self.err = self._capture.readouterr()
        return code

    def json(self, *arguments: object) -> Any:
        assert self(*arguments) == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of the test's own, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a finished run that kept its best models; only to be read."""
    project = Project(tmp_path_factory.mktemp("trained"))
    project.write("run.yaml", CONFIG + BEST)
    with chdir(project.folder):
        assert main(["train", "run.yaml", "--progress", "silent"]) == 0
    return project


@pytest.fixture
def trained(trained_once: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same, as the current folder."""
    monkeypatch.chdir(trained_once.folder)
    return trained_once
