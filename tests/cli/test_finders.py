"""`loopwright lr-find` and `loopwright batch-size-find`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.config import load_config
from loopwright.interfaces.configured.experiment import Experiment
from loopwright.tuning import find_learning_rate
from tests.cli.sweep.projects import write_project

RATES = ["lr-find", "run.yaml", "--low", "1e-4", "--high", "10", "--updates", "60"]
SIZES = ["batch-size-find", "run.yaml"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(write_project(tmp_path))
    return tmp_path


def test_scan_is_that_of_the_trainer_of_the_config(capsys):
    assert main([*RATES, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    experiment = Experiment.from_config(load_config("run.yaml"), progress="silent")
    experiment.build()
    engine = experiment.trainer.engine
    scan = find_learning_rate(
        engine, engine.training_data(), lowest=1e-4, highest=10, num_updates=60
    )
    assert found == scan.to_dict()


def test_rates_are_shown_with_a_suggestion(capsys):
    assert main(RATES) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == ["RATE", "LOSS", "SMOOTHED"]
    assert "Suggestion: 0.0" in printed


def test_without_a_suggestion_the_exit_code_is_1(capsys):
    assert (
        main(
            [
                "lr-find",
                "run.yaml",
                "--low",
                "1e-12",
                "--high",
                "1e-11",
                "trainer.effective_batch_size=24",
            ]
        )
        == 1
    )
    assert "The loss never fell" in capsys.readouterr().out


def test_sizes_are_shown_up_to_the_data_set(capsys):
    assert main(SIZES) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[1:7]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "24"]
    assert all(row[1] == "yes" for row in rows)
    assert "Largest: 24 (limited by the data set, which has 24 samples)." in printed
