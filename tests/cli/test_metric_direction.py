"""Reports and everything else that ranks runs and models goes by the mode that a run noted, or says
that it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwright import ConfigurationError
from loopwright.callbacks import BestModel
from loopwright.checkpoint import load_weights
from loopwright.cli import main
from loopwright.cli.sweep import Optuna, mode_of
from loopwright.cli.sweep.child import placed
from loopwright.config import Sweep, load_config
from loopwright.interfaces.configured.experiment import Experiment
from loopwright.run import Run
from tests.cli.sweep.projects import write_project
from tests.run.run_helpers import run_with


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_json(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_explicit_mode_reaches_every_report(here, capsys):
    _, script = run_with(here / "runs/one", [BestModel("foo", mode="min")], foo=[3.0, 1.0, 2.0])
    weights = script.weights
    (listed,) = as_json(capsys, "runs")
    assert listed["metric"] == {"name": "foo", "value": 1.0, "epoch": 2, "mode": "min"}
    assert as_json(capsys, "show", "runs/one")["best"]["foo"] == {
        "value": 1.0,
        "epoch": 2,
        "mode": "min",
    }
    assert main(["runs"]) == 0
    assert "foo 1 @2" in capsys.readouterr().out
    assert main(["export", "runs/one", "--output", "one.safetensors"]) == 0
    assert "foo 1), written" in capsys.readouterr().out
    assert torch.equal(load_weights("one.safetensors")["weight"], weights[1])


def test_a_metric_about_which_nobody_said_anything_is_shown_with_its_last_value(here, capsys):
    run_with(here / "runs/one", foo=[3.0, 1.0, 2.0])
    (listed,) = as_json(capsys, "runs", "--metric", "foo")
    assert listed["metric"] == {"name": "foo", "value": 2.0, "epoch": 3, "mode": None}
    assert "foo" not in listed["best"]
    assert main(["runs", "--metric", "foo"]) == 0
    assert "foo 2 @3 (last)" in capsys.readouterr().out
    assert main(["show", "runs/one"]) == 0
    shown = capsys.readouterr().out
    assert next(line for line in shown.splitlines() if line.startswith("foo")).split() == [
        "foo",
        "2",
        "-",
        "-",
        "3",
    ]
    assert "No best value of foo" in shown
    assert as_json(capsys, "show", "runs/one")["metrics"]["foo"][0] == {
        "epoch": 1,
        "update": 1,
        "value": 3.0,
    }
    assert as_json(capsys, "runs", "--metric", "foo", "--best", "min")[0]["metric"]["value"] == 1.0


def test_runs_are_not_compared_by_a_metric_about_which_nobody_said_anything(here, capsys):
    run_with(here / "runs/one", foo=[3.0, 1.0])
    options = ["--metric", "foo", "--sort", "metric"]
    assert main(["runs", *options]) == 2
    assert "add --best min or --best max" in capsys.readouterr().err
    assert main(["runs", *options, "--best", "min"]) == 0


def test_runs_that_note_opposite_modes_are_not_sorted_together(here, capsys):
    run_with(here / "runs/one", [BestModel("foo", mode="min")], foo=[3.0, 1.0])
    run_with(here / "runs/two", [BestModel("foo", mode="max")], foo=[3.0, 1.0])
    assert main(["runs", "--metric", "foo", "--sort", "metric"]) == 2
    said = capsys.readouterr().err
    assert "others that larger values are" in said


@pytest.fixture
def project(here: Path) -> Path:
    return write_project(here)


def test_a_sweep_asks_which_way_before_it_starts(project, capsys):
    assert main(["sweep", "run.yaml", "model.width=4,8", "--metric", "foo"]) == 2
    said = capsys.readouterr().err
    assert "--direction minimize" in said
    assert not (project / "runs").exists()


def test_a_sweep_goes_by_the_mode_of_a_callback_then_by_the_name(project):
    (project / "run.yaml").write_text(
        (project / "run.yaml").read_text()
        + "    - {kind: EarlyStopping, metric: test_foo, mode: min}\n"
    )
    config = load_config("run.yaml", [])
    assert mode_of("test_foo", None, config) == "min"
    assert mode_of("test_foo", "maximize", config) == "max"
    assert (mode_of("test_rmse", None, config), mode_of("test_accuracy", None, config)) == (
        "min",
        "max",
    )


NAMED = """

class Named(PointTrainer):
    def loss_compute(self, forward_output, targets):
        return {"score": super().loss_compute(forward_output, targets)["mse"]}
"""


def test_a_sweep_does_not_go_by_a_name_where_its_runs_know_better(project, capsys):
    """Of a sweep whose only run is finished, so that no process is started."""
    with (project / "cli_project.py").open("a") as module:
        module.write(NAMED)
    overrides = ["trainer.kind=cli_project.Named", "model.width=4"]
    config = placed(load_config("run.yaml", overrides), "runs/points/sweep/width=4")
    Experiment.from_config(config, progress="silent").train()
    command = [
        "sweep",
        "run.yaml",
        overrides[0],
        "++sweep={model.width: [4]}",
        "--metric",
        "test_score",
    ]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "smaller values of 'test_score' are better" in said
    assert main([*command, "--direction", "minimize", "--json"]) == 0
    measured = Run("runs/points/sweep/width=4").metrics
    values = [
        point.value for point in (*measured.steps("test_score"), *measured.epochs("test_score"))
    ]
    assert json.loads(capsys.readouterr().out)["best"]["value"] == min(values) < max(values)


def test_a_sweep_that_goes_on_does_not_turn_round(here):
    sweep = Sweep(space={"model.width": [4, 8]}, method="optuna")
    Optuna(sweep, here / "sweep", "max", 2)
    with pytest.raises(ConfigurationError, match="the opposite"):
        Optuna(sweep, here / "sweep", "min", 2)
