"""`loopwright eval`: what a run's model is worth, by its own callbacks or on a data set that is
named."""

from __future__ import annotations

import pytest

from loopwright.interfaces.configured import Experiment
from loopwright.run.reading import Run
from tests.cli.projects import Project, Shell


def test_eval_measures_once_what_the_callbacks_of_the_run_measure(trained: Project, shell: Shell):
    assert shell("eval", "last") == 0
    head, *rows = shell.out.splitlines()
    run = Run(trained.runs()[0])
    best = run.best_of("test_loss")
    assert best is not None
    assert head.startswith(f"points/{run.path.name}, kept/update-0000000{3 * best.epoch}")
    shown = dict(row.split() for row in rows[1:])
    assert shown["test_loss"] == f"{best.value:.6g}"


def test_eval_on_a_named_data_set_gives_its_losses_as_json(trained: Project, shell: Shell):
    (run,) = trained.runs()
    found = shell.json("eval", run, "--data", "train", "--checkpoint", "newest", "--json")
    assert found["run"] == str(run)
    assert found["checkpoint"] == str(run / "checkpoints" / "update-00000006")
    assert found["metrics"] == Experiment.from_run(run, progress="silent").evaluate("train")


@pytest.mark.parametrize("which", ["3", "best", "path"])
def test_eval_takes_the_checkpoint_that_is_named(trained: Project, shell: Shell, which: str):
    run = Run(trained.runs()[0])
    best = run.best_of("test_loss")
    paths = {info.name: info.path for info in run.checkpoints()}
    wanted = str(paths["update-00000003"]) if which == "path" else which
    found = shell.json("eval", "last", "--checkpoint", wanted, "--json")
    epoch = best.epoch if which == "best" else 1
    assert found["metrics"]["test_loss"] == run.metrics.epochs("test_loss")[epoch - 1].value


def test_eval_of_a_run_with_training_data_only_asks_for_a_data_set(project: Project, shell: Shell):
    assert shell("train", "run.yaml", "--progress", "silent", "~datasets.test") == 0
    assert shell("eval", "last") == 2
    assert "--data KEY" in shell.err


def test_an_unknown_data_set_is_answered_with_those_that_there_are(trained: Project, shell: Shell):
    assert shell("eval", "last", "--data", "tset") == 2
    assert "no-such-data-set" in shell.err
    assert "did you mean test?" in shell.err
    assert "Traceback" not in shell.err


def test_a_run_that_was_not_started_from_a_config_cannot_be_evaluated(
    in_gallery: object, shell: Shell
):
    assert shell("eval", "finished") == 2
    assert "model.load_state_dict(loopwright.load_weights(" in shell.err
