"""A project as a person has it, a run file with a module beside it, and commands in its folder."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main

MODULE = '''
import os
import signal

import torch
from torch import nn
from torch.utils.data import Dataset

from loopwright import Callback
from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig


class Net(nn.Module):
    def __init__(self, width: int = 8, is_broken: bool = False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.is_broken = is_broken

    def forward(self, x):
        if self.is_broken:
            raise ZeroDivisionError("no luck today")
        return self.body(x)


class TwoHeads(Net):
    def forward(self, x):
        mean = self.body(x)
        return {"mean": mean, "heads": (mean + 1, mean.to(torch.bfloat16))}


class Points(Dataset):
    def __init__(self, n: int = 32):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.x[index].sum(0, keepdim=True)}


class PointTrainer(BaseTrainer):
    def __init__(self, trainer_config: BaseTrainerConfig, **deps):
        super().__init__(trainer_config, **deps)

    def loss_compute(self, forward_output, targets):
        if isinstance(forward_output, dict):
            forward_output = forward_output["mean"]
        return {"mse": nn.functional.mse_loss(forward_output, targets["y"])}


class Signal(Callback):
    """Sends this process a signal after an update, but only where no run went that far before."""

    def __init__(self, number: int, update: int, marker: str = "sent"):
        self.number, self.update, self.marker = number, update, marker

    def on_update_end(self, trainer):
        if trainer.progress.update == self.update and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), self.number)
'''
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
        return sorted((self.folder / "runs" / name).glob("*"))


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
