"""`loopwright train`: a run from a file, again from where it was left, and mistakes without
tracebacks."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loopwright.checkpoint import load_weights
from loopwright.run.reading import Run
from tests.cli.helpers import run_on_terminal
from tests.cli.projects import CONFIG, Project, Shell
from tests.terminals import Screen

SIGNAL = "  callbacks: [{kind: cli_project.Signal, number: %d, update: 4}]\n"
QUIET = ("--progress", "silent")


def newest_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_weights(Run(run).checkpoints()[-1].path)


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = newest_weights(first), newest_weights(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_train_says_where_the_run_is_and_how_it_ended(project: Project, shell: Shell):
    assert shell("train", "run.yaml") == 0
    (run,) = project.runs()
    first, *_, last = shell.out.splitlines()
    assert first == f"New run in runs/points/{run.name}: cpu, 49 parameters."
    assert "epoch 2/2" in shell.out
    assert re.search(
        r"\nFinished: 2 epochs, 6 updates in 0:0\d\. Best loss \d\.\d+ in epoch 2\.\n", shell.out
    )
    assert (
        last
        == f"To inspect it: loopwright show runs/points/{run.name}, or loopwright ui runs/points"
    )
    assert shell.err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_goes_on_exactly(
    project: Project, shell: Shell, number: int, code: int
):
    project.write("run.yaml", CONFIG + SIGNAL % number)
    assert shell("train", "run.yaml") == code
    assert "after update 4: saved" in shell.out
    (run,) = project.runs()
    assert Run(run).state == "interrupted"
    assert shell("train", "run.yaml") == 0
    assert f"Resuming runs/points/{run.name} at epoch 2, update 4 (" in shell.out
    assert project.runs() == [run]
    assert shell("train", "run.yaml", "--new", *QUIET) == 0
    assert_same_weights(*project.runs())


def test_another_config_is_a_new_run_unless_its_changes_are_accepted(
    project: Project, shell: Shell
) -> None:
    project.write("run.yaml", CONFIG + SIGNAL % signal.SIGINT)
    assert shell("train", "run.yaml") == 130
    (run,) = project.runs()
    before = (run / "run.json").read_bytes(), (run / "config.yaml").read_bytes()
    project.write("run.yaml", CONFIG.replace("lr: 0.01", "lr: 0.1") + SIGNAL % signal.SIGINT)
    assert shell("train", "run.yaml") == 0
    new = project.runs()[-1]
    assert "model.optimizer.lr: 0.01 -> 0.1" in shell.out
    assert new != run
    shutil.rmtree(new)
    assert shell("train", "--resume", str(run), "model.optimizer.lr=0.1") == 2
    assert "config.model.optimizer.lr: 0.01 -> 0.1" in shell.err
    assert "--accept-changes" in shell.err
    assert ((run / "run.json").read_bytes(), (run / "config.yaml").read_bytes()) == before
    assert shell("train", "run.yaml", "--accept-changes") == 0
    assert project.runs() == [run]
    view = Run(run)
    assert view.config["model"]["optimizer"]["lr"] == 0.1
    (noted,) = view.manifest["changes"]
    assert noted["update"] == 4
    assert noted["values"]["optimizer.lr"] == [0.01, 0.1]


def test_on_a_terminal_there_is_a_bar(project: Project):
    code, shown = run_on_terminal("run.yaml", group=("train",))
    assert code == 0, shown
    assert "━" in shown
    assert re.search(r"\n +2/2 ", Screen().feed(shown).text)
    assert "Finished: 2 epochs" in shown


@pytest.mark.long
def test_several_processes_train_one_run(project: Project):
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command = [*launcher, "-m", "loopwright", "train", "run.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = project.runs()
    assert Run(run).state == "finished"
    assert done.stdout.count("New run in") == 1
    assert done.stdout.count("Finished: ") == 1


def test_only_the_first_of_several_processes_reports_a_mistake(
    project: Project, shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as left:
        shell("train", "run.yaml", "model.wdth=3")
    assert left.value.code == 2


# Going on


def test_resume_goes_on_with_a_run_from_its_own_config(project: Project, shell: Shell):
    assert shell("train", "run.yaml", "model.width=5", *QUIET) == 0
    assert shell("train", "--resume", "last", "trainer.max_epochs=3") == 0
    (run,) = project.runs()
    assert Run(run).progress.epoch == 3
    assert "epoch 3/3" in shell.out


def test_resume_from_a_checkpoint_is_a_run_of_its_own(project: Project, shell: Shell):
    assert shell("train", "run.yaml", *QUIET) == 0
    (first,) = project.runs()
    checkpoint = Run(first).checkpoints()[-1].path
    assert shell("train", "run.yaml", "--resume", checkpoint, "trainer.max_epochs=3", *QUIET) == 0
    second = next(run for run in project.runs() if run != first)
    assert Run(second).progress.epoch == 3
    assert Run(first).progress.epoch == 2


# Mistakes


def test_mistakes_in_the_config_are_one_report_without_a_traceback(project: Project, shell: Shell):
    assert shell("train", "run.yaml", "+model.wdth=3", "trainer.effective_batch_size=many") == 2
    assert "2 mistakes" in shell.err
    assert "did you mean width?" in shell.err
    assert "Traceback" not in shell.err
    assert not project.runs()


def test_a_sweep_is_refused_with_the_command_to_use(project: Project, shell: Shell):
    assert shell("train", "run.yaml", "model.width=4,8") == 2
    assert "model.width: use `loopwright sweep`" in shell.err


def test_an_error_in_own_code_is_told_with_its_place_and_no_traceback(
    project: Project, shell: Shell
):
    assert shell("train", "run.yaml", "+model.is_broken=true", *QUIET) == 2
    head, place, *_ = shell.err.splitlines()
    assert head == "loopwright: ZeroDivisionError: no luck today"
    assert f"{project.folder / 'cli_project.py'}:" in place
    assert "in forward: raise ZeroDivisionError" in place
    assert "Traceback" not in shell.err
    (run,) = project.runs()
    assert str(run / "log.txt") in shell.err
    assert "Traceback" in (run / "log.txt").read_text()
