"""`loopwright config`: what a file comes to, what files may hold, and all mistakes in one
report."""

from __future__ import annotations

import json

import pytest

from loopwright.config import load_config
from tests.cli.projects import CONFIG, Project, Shell

# show


def test_show_prints_a_config_that_loads_to_the_same(project: Project, shell: Shell):
    assert shell("config", "show", "run.yaml", "model.width=5", "+tags=[a, b]") == 0
    again = project.write("again.yaml", shell.out)
    assert (
        load_config(again).tree == load_config("run.yaml", ["model.width=5", "+tags=[a, b]"]).tree
    )


def test_show_keeps_what_comes_from_the_environment_secret(
    project: Project, shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET_WORD", "sesame")
    assert shell("config", "show", "run.yaml", "+vars.word=${env:SECRET_WORD}") == 0
    assert "${env:SECRET_WORD}" in shell.out
    assert "sesame" not in shell.out


# validate


def test_all_mistakes_of_several_files_are_in_one_report(project: Project, shell: Shell):
    bad = CONFIG.replace("max_epochs: 2", "max_epochs: two").replace(
        "width: ${vars.width}", "wdth: 3"
    )
    project.write("bad.yaml", bad)
    project.write("broken.yaml", "model: [")
    assert shell("config", "validate", "run.yaml", "bad.yaml", "broken.yaml", "nowhere.yaml") == 1
    assert "run.yaml: no mistakes" in shell.out
    assert "bad.yaml: 2 mistakes" in shell.out
    assert "bad.yaml:14: trainer.max_epochs" in shell.out
    assert "did you mean width?" in shell.out
    assert "broken.yaml: 1 mistake" in shell.out
    assert "nowhere.yaml: 1 mistake" in shell.out
    assert "Traceback" not in shell.out + shell.err
    assert not (project.folder / "runs").exists()


def test_mistakes_as_json_have_their_places(project: Project, shell: Shell):
    project.write("bad.yaml", CONFIG + "sed: 1\n")
    assert shell("config", "validate", "bad.yaml", "--json") == 1
    (file,) = json.loads(shell.out)
    (problem,) = file["problems"]
    assert (file["file"], problem["key"], problem["line"]) == ("bad.yaml", "sed", 18)
    assert "seed" in problem["message"]


@pytest.mark.parametrize("method", ["grid", "optuna"])
def test_the_runs_of_a_sweep_are_checked_too(project: Project, shell: Shell, method: str):
    block = f"sweep: {{method: {method}, metric: test_loss, space: {{model.width: [%s]}}}}\n"
    project.write("good.yaml", CONFIG + block % "4, 8")
    project.write("bad.yaml", CONFIG + block % "wide, 8")
    assert shell("config", "validate", "good.yaml", "bad.yaml") == 1
    assert "good.yaml: no mistakes" in shell.out
    assert "model.width" in shell.out
    assert "bad.yaml: 1 mistake" in shell.out
