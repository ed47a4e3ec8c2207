"""The example of the configured interface: it solves its equation, and its operator learns to."""

import re
from pathlib import Path

import pytest

from loopwright.config import load_config
from loopwright.interfaces.configured import Experiment

FOLDER = Path(__file__).parents[3] / "examples" / "configured"


def test_a_shortened_run_is_clearly_better_than_its_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    overrides = ["trainer.max_epochs=5", "datasets.test.count=32", "model.width=16"]
    run = Experiment.from_config(load_config(FOLDER / "run.yaml", overrides))
    run.train()
    said = re.search(
        r"Relative error on test: ([\d.]+); of leaving the field as it is: ([\d.]+)",
        capsys.readouterr().out,
    )
    assert float(said[1]) < 0.3 * float(said[2])
    assert float(said[1]) == pytest.approx(run.evaluate()["test_relative_error"], abs=1e-3)
