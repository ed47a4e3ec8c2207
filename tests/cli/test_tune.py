"""`loopwright tune`: the settings of a run file, and the command to write for what is worth it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from loopwright.cli import main
from loopwright.cli.tuning import lines_for
from loopwright.config import load_config
from loopwright.interfaces.configured.experiment import Experiment
from loopwright.interfaces.configured.trainer import BaseTrainerConfig
from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from tests.cli.sweep.projects import write_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(write_project(tmp_path))
    monkeypatch.setattr(Tuner, "_num_updates", 2)
    monkeypatch.setattr(tune, "NUM_TURNS", 2)
    return tmp_path


def test_the_settings_of_a_run_file_are_tried_and_no_run_is_written(project, capsys):
    files = sorted(project.iterdir())
    assert main(["tune", "run.yaml", "--only", "batch-size", "trainer.effective_batch_size=6"]) == 0
    printed = capsys.readouterr().out
    assert "batch size 12" in printed
    assert "current settings" in printed
    assert [path for path in sorted(project.iterdir()) if path.name != "__pycache__"] == files


def test_as_json(capsys, monkeypatch):
    # which takes long, and is not what is tested
    monkeypatch.setattr(nn.Module, "compile", lambda module: None)
    assert (
        main(
            [
                "tune",
                "run.yaml",
                "--only",
                "compile,precision",
                "--json",
                "+trainer.precision=bf16",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["present"]["precision"] == "bf16"
    tried = [row["settings"] for row in found["rows"]]
    assert {"precision": "fp32"} in tried
    assert {"compile": "model"} in tried
    assert {"compile": "step"} not in tried  # no run file could ask for it
    assert found["is_complete"]


def settings_of(**given: Any) -> BaseTrainerConfig:
    return BaseTrainerConfig(max_epochs=1, **given)


def test_what_to_write_is_a_command_and_what_no_run_file_has_is_a_line_of_code():
    settings = {
        "workers": 2,
        "batch_size": 64,
        "compile": "model",
        "precision": "bf16",
        "threads": 2,
    }
    assert lines_for(settings, "run.yaml", settings_of()) == [
        "export OMP_NUM_THREADS=2",
        "loopwright train run.yaml +trainer.num_workers=2 "
        "+trainer.effective_batch_size=64 +trainer.precision=bf16 +trainer.use_torch_compile=true",
    ]
    assert lines_for({}, "run.yaml", settings_of()) == []


def test_the_overrides_are_settings_of_run_files():
    settings = {"workers": 1, "batch_size": 12, "precision": "bf16", "compile": "model"}
    built = Experiment.from_config(load_config("run.yaml"), progress="silent")
    built.build()
    (command,) = lines_for(settings, "run.yaml", built.trainer.config)
    overrides = command.split()[3:]
    assert overrides[:2] == ["+trainer.num_workers=1", "trainer.effective_batch_size=12"]
    experiment = Experiment.from_config(load_config("run.yaml", overrides), progress="silent")
    experiment.build()
    engine = experiment.trainer.engine
    assert engine.runtime.precision == "bf16"
    assert engine.compile_mode == engine.runtime.compile == "model"
    assert (engine.config.num_workers, engine.config.batch_size) == (1, 12)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["train.py"], "[not-a-run-file]"), (["run.yaml", "--only", "worker"], "worker")],
)
def test_what_cannot_be_tuned_is_refused(words, said, capsys):
    assert main(["tune", *words]) == 2
    assert said in capsys.readouterr().err
