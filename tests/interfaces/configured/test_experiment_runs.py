"""Run directories of experiments: what they tell, which are continued, and that none is
overwritten."""

import json
import os
import signal
import sys

import pytest
import yaml

from loopwright import Callback
from loopwright.checkpoint import list_checkpoints
from loopwright.config import load_config
from loopwright.errors import ConfigurationError
from loopwright.interfaces.configured import Experiment
from loopwright.run import RunManifest

from ...forked import call_forked
from ...loops import assert_same_model
from ...mistakes import raises
from .experiments import experiment, rows, train_by_hand


def test_a_run_directory_says_what_ran(project):
    run = experiment("name=first", "tags=[a,b]", "trainer.max_updates=3")
    run.train()
    manifest = RunManifest.read(run.run / "run.json")
    assert (manifest.name, manifest.tags, manifest.state, manifest.seed) == (
        "first",
        ["a", "b"],
        "finished",
        0,
    )
    assert manifest.progress["update"] == 3
    assert manifest.packages["torch"].startswith("2.")
    assert manifest.hardware["cpus"] == os.cpu_count()
    assert manifest.data["train"]["length"] == 64
    assert manifest.data["train"]["fingerprint"] != manifest.data["test"]["fingerprint"]
    assert "the limit is reached" in (run.run / "log.txt").read_text()


def test_the_resolved_config_is_a_config_that_runs(project):
    first = experiment("trainer.max_updates=5", "model.width=9", "~output_path")
    first.train()
    again = experiment("output_path=again", file=first.run / "config.yaml")
    again.train()
    assert again.run == project / "again"
    assert again.name == first.name
    assert_same_model(again.trainer.model, first.trainer.model)
    written = yaml.safe_load((first.run / "config.yaml").read_text())
    assert (written["model"]["width"], written["trainer"]["max_updates"]) == (9, 5)


def test_a_second_run_never_overwrites_a_first(project):
    first = experiment("trainer.max_updates=3")
    first.train()
    before = {
        path: path.read_bytes()
        for path in first.run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    second = experiment("trainer.max_updates=3")
    second.train(resume=False)
    third = experiment("model.width=7", "trainer.max_updates=3")
    third.train()
    assert [run.run.name for run in (first, second, third)] == ["out", "out-2", "out-3"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_of_the_users_is_not_written_over_by_a_module(project):
    (project / "out").mkdir()
    (project / "out" / "mine.py").write_text("MINE = True\n")
    with raises("module-overwritten", "mine.py"):
        experiment("trainer.max_updates=1").train()
    assert (project / "out" / "mine.py").read_text() == "MINE = True\n"


def test_a_run_goes_on_from_another_runs_checkpoint_in_a_directory_of_its_own(project):
    first = experiment("trainer.max_updates=9")
    first.train()
    point = list_checkpoints(first.run)[-1].path
    second = experiment("trainer.max_updates=12", "output_path=second")
    second.train(resume=point)
    assert second.run == project / "second"
    assert_same_model(second.trainer.model, train_by_hand(12))


def test_other_data_in_a_continued_run_is_refused_and_other_code_is_mentioned(project, capsys):
    experiment("trainer.max_updates=2").train()
    module = (project / "mine.py").read_text()
    (project / "mine.py").write_text(module.replace("self.labels = self", "self.labels = 2 * self"))
    os.utime(project / "mine.py", (0, 0))
    sys.modules.pop("mine")
    again = Experiment.from_config(
        load_config("run.yaml", ["trainer.max_updates=4"]), progress="lines"
    )
    with pytest.raises(ConfigurationError, match=r"data\.samples: "):
        again.train()
    again.train(changes="accept")
    said = capsys.readouterr().out
    assert "code has changed since the run began: mine.py" in said


class Kill(Callback):
    def on_train_step_start(self, trainer, batch):
        if trainer.progress.update == 23:
            os.kill(os.getpid(), signal.SIGKILL)


def be_killed():
    run = experiment("trainer.callbacks.1.every_updates=3")
    run.build()
    run.trainer.engine.add_callback(Kill())
    run.train()


def test_a_run_whose_process_was_killed_continues_exactly(project):
    text = (project / "run.yaml").read_text()
    (project / "run.yaml").write_text(
        text.replace("}]}", "}, {kind: Checkpoints, every_updates: 5, keep: 2}]}")
    )
    done = call_forked(be_killed, project)
    assert done.code == -signal.SIGKILL, done.err
    killed = project / "out"
    assert json.loads((killed / "run.json").read_text())["state"] == "running"
    assert [info.name for info in list_checkpoints(killed)]
    resumed = experiment("trainer.callbacks.1.every_updates=3")
    resumed.train()
    assert resumed.run == killed
    assert_same_model(resumed.trainer.model, train_by_hand())
    straight = experiment("trainer.callbacks.1.every_updates=3", "output_path=straight")
    straight.train()
    assert rows(killed) == rows(straight.run)
