"""Small things that commands say and take: words that fit the place, files and exit codes in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from train_helpers import CONFIG, Project, Shell

from loopwright import Callback, Trainer
from loopwright.cli.exits import EXIT_CODES
from loopwright.cli.sweep.child import GO_ON, Reporter


def test_a_finished_run_says_how_a_command_starts_over(project: Project, shell: Shell):
    assert shell("train", "run.yaml", "--progress", "silent") == 0
    assert shell("train", "--resume", "last") == 0
    assert "Raise the limit to go on, or pass --new to start over." in shell.out
    assert "resume=False" not in shell.out


def test_a_file_may_come_after_an_option(project: Project, shell: Shell):
    project.write("bad.yaml", CONFIG + "sed: 1\n")
    assert shell("config", "validate", "run.yaml", "--json", "bad.yaml", "trainer.max_epochs=3") == 1
    assert [(entry["file"], len(entry["problems"])) for entry in json.loads(shell.out)] == [
        ("run.yaml", 0),
        ("bad.yaml", 1),
    ]


def test_an_unknown_option_before_a_file_is_still_refused(project: Project, shell: Shell, capsys: Any):
    with pytest.raises(SystemExit) as left:
        shell("config", "validate", "run.yaml", "--jsn", "run.yaml")
    assert left.value.code == 2
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_help_names_the_code_of_a_run_that_sigterm_ended():
    assert [code for code in ("0", "1", "2", "130", "141", "143") if f"{code} " not in EXIT_CODES] == []


class Scores(Callback):
    """Logs a metric after every update."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def on_update_end(self, trainer: Trainer) -> None:
        trainer.log({"score": self.values[trainer.progress.update - 1]})


class Listener:
    """Notes what a run tells the sweep, and lets it go on."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def ask(self, message: Mapping[str, Any]) -> str:
        self.heard.append(f"{message['update']}: {message['value']}")
        return GO_ON


def test_a_metric_that_is_no_number_is_told_once():
    model, listener = nn.Linear(1, 1), Listener()
    callbacks = [Scores(1.0, nan, nan, nan, 2.0), Reporter("score", listener)]  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, nn.MSELoss(), callbacks=callbacks, progress="silent")
    trainer.train(TensorDataset(torch.ones(5, 1), torch.ones(5, 1)), 1, batch_size=1)
    assert listener.heard == ["1: 1.0", "2: nan", "5: 2.0"]
