"""What the start of a run prints, and the seeds with which the same program started again goes
on."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import loopwright
from loopwright import Trainer
from tests.forked import call_forked
from tests.loops import build_net

from .test_fingerprint import drawn

adam = partial(torch.optim.Adam, lr=0.01)


def test_every_start_says_device_size_directory_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    frozen = build_net()
    frozen[0].requires_grad_(False)
    for given in (
        {},
        {"model": build_net()},
        {"run_dir": None},
        {"model": frozen, "run_dir": "other"},
    ):
        data = drawn()
        parts = {"model": build_net(), "run_dir": "runs/first", **given}
        trainer = Trainer(
            parts["model"], adam, F.cross_entropy, run_dir=parts["run_dir"], progress="lines"
        )
        trainer.train(data, num_updates=5 + len(given), batch_size=8)
    lines = [line for line in capsys.readouterr().out.splitlines() if "parameters" in line]
    assert lines[0] == "New run in runs/first: cpu, 195 parameters."
    assert lines[1].startswith("Resuming runs/first at epoch 2, update 5 (")
    assert re.search(r"\(saved \d+ s ago\): cpu, 195 parameters\.$", lines[1])
    assert lines[2] == "Training without a run directory: cpu, 195 parameters."
    assert lines[3] == "New run in other: cpu, 195 parameters (83 trainable)."


def test_seed_everything_seeds_all_generators_and_returns_the_seed() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert loopwright.seed_everything(7) == 7
    once = draw()
    assert loopwright.seed_everything(7) == 7
    assert draw() == once


def test_the_first_program_of_the_readme_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]
    longer = program.replace("num_epochs=5", "num_epochs=6")
    ended = [call_forked(partial(exec, text, {}), tmp_path) for text in (program, program, longer)]
    assert [one.code for one in ended] == [0, 0, 0], ended[2].err
    assert "Nothing to train" in ended[1].out
    assert "Resuming runs/first at epoch 6, update 125" in ended[2].out
