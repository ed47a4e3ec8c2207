"""What run.json says of an experiment, which is one run although every epoch is a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import ConfigurationError
from loopwright.interfaces.adversarial import Pix2pixTrainer
from loopwright.run.reading import RunView

from ...forked import run_forked
from .runs import continued, tiny


def states(trainer: Pix2pixTrainer) -> str:
    assert trainer.experiment_dir is not None
    return RunView(trainer.experiment_dir).state


def test_an_experiment_runs_until_it_is_over(data: Path, tmp_path: Path) -> None:
    trainer = Pix2pixTrainer(tiny(data, tmp_path))
    found = []
    for epoch in range(2):
        trainer.train_paired(epoch)
        found.append(states(trainer))
    trainer.finish()
    assert [*found, states(trainer)] == ["running", "running", "finished"]
    assert RunView(tmp_path / "tiny_v1").progress.epoch == 2


def test_another_trainer_of_the_program_may_go_on_with_it(data: Path, tmp_path: Path) -> None:
    config = tiny(data, tmp_path)
    first = Pix2pixTrainer(config)
    first.train_paired(0)
    first.save_checkpoint()
    second = Pix2pixTrainer(continued(config))
    assert states(first) == "finished"
    second.train_paired(0)
    assert states(second) == "running"
    with pytest.raises(ConfigurationError, match="being written by this process"):
        first.train_paired(1)
    second.finish()


def test_an_error_inside_an_epoch_is_what_ended_it(data: Path, tmp_path: Path) -> None:
    trainer = Pix2pixTrainer(tiny(data, tmp_path))

    def fail(x: Any, y: Any, idx: int) -> None:
        raise ZeroDivisionError("no luck today")

    with pytest.raises(ZeroDivisionError):
        trainer.train_paired(0, train_step=fail)
    trainer.finish()
    assert (states(trainer), RunView(tmp_path / "tiny_v1").reason) == (
        "failed",
        "ZeroDivisionError: no luck today",
    )


PROGRAM = """
import atexit, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from loopwright.interfaces.adversarial import Trainer

class Plain(Trainer):
    def __init__(self, name):
        super().__init__({"common": {"device": "cpu", "experiment_name": name}})
        self.net = nn.Linear(1, 1)
        self.opt = self.build_optimizer(self.net)
        self.train_loader = DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)), 1)
    def on_epoch_start(self): pass
    def train_step(self, x, y, idx): self.update((self.net(x) - y).square().mean(), self.opt)
    def on_epoch_end(self): pass

def run(name):
    trainer = Plain(name)
    trainer.train_paired(0)
    if name == "damaged":
        (trainer.experiment_dir / "run.json").write_text("{")
    if name in ("failed", "damaged"):
        raise ValueError("between epochs")
    if name == "crashed":
        os._exit(1)

for name in ("finished", "failed", "crashed", "damaged"):
    pid = os.fork()
    if pid == 0:
        try:
            run(name)
        except ValueError as error:
            sys.last_value = error  # as the interpreter does, before it ends the program
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_program_that_ends_says_how(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    said = run_forked(script, tmp_path)
    views = {
        name: RunView(tmp_path / "runs" / f"{name}_v1")
        for name in ("finished", "failed", "crashed")
    }
    assert {name: view.state for name, view in views.items()} == {name: name for name in views}
    assert views["failed"].reason == "ValueError: between epochs"
    assert "damaged_v1 could not be recorded" in said
    assert "Traceback" not in said
