"""`loopwright sweep`: one process and directory for each combination, and the same command
continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.checkpoint import CheckpointStore
from loopwright.checkpoint.compare import compare_trees
from loopwright.cli import main
from loopwright.cli.sweep import Child, Optuna, Result, Task, best_value, is_finished, place_for
from loopwright.cli.sweep.child import placed
from loopwright.config import Sweep, ValueRange, load_config
from loopwright.interfaces.configured.experiment import Experiment
from loopwright.run.reading import Run
from tests.cli.sweep.projects import write_project
from tests.mistakes import raises
from tests.waiting import wait_for

HOLD = "+trainer.callbacks.1.kind=cli_project.Hold"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(write_project(tmp_path))
    return tmp_path


def trained_here(*overrides: str, path: str = "alone") -> Path:
    """The run of a config, trained in this process and in one piece."""
    config = placed(load_config("run.yaml", overrides), path)
    Experiment.from_config(config, progress="silent").train()
    return Path(path)


def newest(run: Path) -> dict:
    tree = CheckpointStore(run / "checkpoints").newest().tree
    return {part: tree[part] for part in ("models", "optimizers", "history", "rng")}


def test_each_run_is_that_of_its_config_and_a_failed_one_does_not_stop_the_others(project, capsys):
    assert main(["sweep", "run.yaml", "model.width=-1,4", "--jobs", "2", "--json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [(run["name"], run["state"]) for run in found["runs"]] == [
        ("width=4", "finished"),
        ("width=-1", "failed"),
    ]
    assert found["runs"][1]["error"].startswith(
        "RuntimeError: Trying to create tensor with negative dimension -1"
    )
    assert "[2/2]" in printed.err
    own = project / "runs" / "points" / "sweep" / "width=4"
    assert compare_trees(newest(own), newest(trained_here("model.width=4"))) == ()
    assert found["best"]["value"] == best_value(Run(own), "test_loss", "min")
    _check_finished_runs_stay(capsys, own)


def _check_finished_runs_stay(capsys, own: Path) -> None:
    """The same sweep with what has finished only: no process is started, and nothing of the run is
    touched."""
    before = {path: path.stat().st_mtime_ns for path in own.rglob("*")}
    assert main(["sweep", "run.yaml", "++sweep={model.width: [4]}"]) == 0
    printed = capsys.readouterr().out
    assert "1 of 1 runs are finished already." in printed
    assert {path: path.stat().st_mtime_ns for path in own.rglob("*")} == before


def test_a_run_whose_process_is_killed_has_failed_and_the_signal_is_named(project, capsys):
    with (project / "cli_project.py").open("a") as module:
        module.write(
            "\n\nimport os\n\nclass Killed(Net):\n    def forward(self, x):\n        "
            "os.kill(os.getpid(), 9)\n"
        )
    assert (
        main(
            [
                *["sweep", "run.yaml", "model.kind=cli_project.Killed"],
                "++sweep={model.width: [4]}",
                "--json",
            ]
        )
        == 1
    )
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["state"] == "failed"
    assert run["error"].startswith("its process ended with SIGKILL: ")


@pytest.mark.long
def test_ctrl_c_lets_runs_save_and_the_same_command_continues_them_exactly(project):
    arguments = ["sweep", "run.yaml", "++sweep={model.optimizer.lr: [0.1]}", HOLD]
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwright", *arguments], stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: (project / "held").exists())
    process.send_signal(signal.SIGINT)
    (project / "go").touch()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Interrupted. The same command continues the sweep." in printed
    run = project / "runs" / "points" / "sweep" / "lr=0.1"
    assert (Run(run).state, Run(run).progress.update) == ("interrupted", 5)
    assert main(arguments) == 0
    assert "from epoch 1, update 5" in (run / "log.txt").read_text()
    alone = trained_here("model.optimizer.lr=0.1", HOLD)
    assert compare_trees(newest(run), newest(alone)) == ()


def started_child(project: Path, *overrides: str) -> tuple[Task, Child]:
    task = Task("only", {"model.width": 8}, project / "only")
    spec = {
        "config": str(project / "run.yaml"),
        "overrides": ["model.width=8,16", *overrides],
        "metric": "test_loss",
    }
    return task, Child(task, spec, project / "output.txt", os.environ)


def test_a_run_whose_sweep_was_killed_saves_and_ends(project):
    task, child = started_child(project, f"{HOLD}UntilSignal")

    def is_held() -> bool:
        for _ in child.messages():
            child.answer(True)
        return (project / "held").exists()

    wait_for(is_held)
    child.connection.close()  # what the system does for a process that is gone
    assert child.process.wait(timeout=300) == 143
    assert (Run(task.path).state, Run(task.path).progress.update) == ("interrupted", 5)
    assert child.close() is None


def test_a_run_that_waits_for_the_answer_of_a_killed_sweep_is_interrupted_and_not_pruned(project):
    task, child = started_child(project)
    wait_for(lambda: any(True for _ in child.messages()))
    child.connection.close()
    assert child.process.wait(timeout=300) == 143
    assert (Run(task.path).state, Run(task.path).progress.update) == ("interrupted", 3)
    assert child.close() is None


def test_optuna_chooses_runs_and_does_not_repeat_those_of_an_earlier_call(project, capsys):
    space = (
        "++sweep={method: optuna, num: 1, space: {model.optimizer.lr: {low: 0.001, high: 0.1, "
        "log: true}}}"
    )
    assert main(["sweep", "run.yaml", space]) == 0
    assert "[1/1] lr=0.0" in capsys.readouterr().out
    assert main(["sweep", "run.yaml", space, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["name"], run["state"]) for run in found["runs"]] == [("trial-0000", "finished")]
    own = Run(project / "runs" / "points" / "sweep" / "trial-0000")
    assert own.config["model"]["optimizer"]["lr"] == found["best"]["chosen"]["model.optimizer.lr"]
    assert found["best"]["value"] == best_value(own, "test_loss", "min")


# Without processes


SPACE = Sweep(
    {"a": ValueRange(0.0, 1.0), "b": [[1, 2], "x"], "n": ValueRange(1, 8, step=2)}, method="optuna"
)


def finished(task: Task, value: float) -> Result:
    return Result(task, "finished", value)


def test_optuna_ends_a_run_that_goes_worse_than_the_others(tmp_path):
    search = Optuna(SPACE, tmp_path, "min", 10)
    for number in range(3):
        task = search.next()
        assert all(search.report(task, update, number + 1.0 / update) for update in (1, 2, 3))
        search.done(finished(task, number))
    bad = search.next()
    assert [search.report(bad, 1, 50.0), search.report(bad, 1, 50.0)] == [False, False]
    search.done(Result(bad, "pruned", 50.0))
    again = Optuna(SPACE, tmp_path, "min", 4)
    assert [trial.state.name for trial in again.ended] == [*["COMPLETE"] * 3, "PRUNED"]


def test_what_a_killed_sweep_left_unfinished_comes_first_with_the_same_values(tmp_path):
    first = Optuna(SPACE, tmp_path, "min", 3)
    done, left = first.next(), first.next()
    first.done(finished(done, 1.0))
    again = Optuna(SPACE, tmp_path, "min", 3)
    task, new = again.next(), again.next()
    assert (task.name, task.chosen) == (left.name, left.chosen)
    assert task.chosen["b"] in ([1, 2], "x")
    assert task.chosen["n"] in (1, 3, 5, 7)
    assert new.name == "trial-0002"
    assert again.next() is None
    assert [found.name for found in again.tasks_before()] == [done.name]


def test_optuna_does_not_mix_sweeps_over_other_values(tmp_path):
    search = Optuna(SPACE, tmp_path, "min", 3)
    search.done(finished(search.next(), 1.0))
    other = Sweep({**SPACE.space, "b": ["x", "y", "z"]}, method="optuna")
    with raises("other-space"):
        Optuna(other, tmp_path, "min", 3).tasks_before()


MISTAKES = {
    "nothing to vary": (["model.width=8"], "has no values to try"),
    "a value that does not fit": (["model.width=8,wide"], "expected a whole number"),
    "a key that is not there": (["model.depth=1,2"], "model.depth"),
    "no job": (["model.width=4,8", "--jobs", "0"], "--jobs=0: use a whole number"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_what_cannot_be_swept_is_said_before_anything_is_trained(
    project, capsys, arguments, message
):
    assert main(["sweep", "run.yaml", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "runs").exists()


def test_a_run_of_another_config_keeps_its_directory(project):
    folder = project / "sweep"
    trained_here("trainer.max_updates=3", path="sweep/width=8")
    same = placed(load_config("run.yaml", ["trainer.max_updates=3"]), folder / "width=8")
    longer = placed(load_config("run.yaml", ["trainer.max_updates=6"]), folder / "width=8")
    other = placed(load_config("run.yaml", ["model.optimizer.lr=0.5"]), folder / "width=8")
    assert [place_for(folder, "width=8", config).name for config in (same, longer, other)] == [
        *["width=8", "width=8"],
        "width=8-2",
    ]
    assert is_finished(folder / "width=8", same)
    assert not is_finished(folder / "width=8", longer)
    assert not is_finished(folder / "width=8-2", other)
