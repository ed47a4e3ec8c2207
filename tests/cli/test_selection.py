"""Which run and which checkpoint a command means, and what it says where none or several fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loopwright.cli.app import build_parser
from loopwright.cli.selection import find_source, pick_checkpoint
from loopwright.run import Run
from loopwright.run.best import find_weights
from tests.cli.helpers import cut
from tests.cli.projects import Shell
from tests.mistakes import raises

KEPT, RESUME = "kept/update-00000012", "checkpoints/update-00000012"


# Runs


def test_every_command_that_takes_a_run_means_the_last_one_without(in_gallery: Path) -> None:
    commands = ["show", "watch", "export", "eval", "checkpoint list", "checkpoint verify"]
    for command in commands:
        options = build_parser().parse_args(command.split())
        assert "last" in (
            vars(options).get("name"),
            vars(options).get("run_name"),
            vars(options).get("run_directory"),
        )
    assert build_parser().parse_args(["checkpoint", "show"]).source == "last"
    assert (
        build_parser().parse_args(["plot"]).names
        == build_parser().parse_args(["report"]).names
        == ["last"]
    )


def test_diff_compares_the_last_two_or_one_with_the_last(in_gallery: Path, shell: Shell) -> None:
    both = shell("diff", "twin", "killed"), shell.out
    assert (shell("diff"), shell.out) == both
    assert (shell("diff", "twin"), shell.out) == both
    assert shell("diff", "last") == 2
    assert (
        shell.err
        == "loopwright: killed is the last run itself: name the run to compare it with. [run-with-itself]\n"
    )


MISUNDERSTOOD = {
    "`loopwright show` in a folder without runs": (
        ["show", "--root", "nowhere"],
        "There are no runs in nowhere/ ",
    ),
    "`loopwright show runs`, with several runs in it": (
        ["show", "runs"],
        "'runs' could be any of 6 runs:\n  killed",
    ),
    "`loopwright eval run.yaml`": (
        ["eval", "run.yaml"],
        "run.yaml is not a run. A run is a directory that training",
    ),
    "`loopwright diff` with one run": (
        ["diff", "--root", "runs/deep"],
        "runs/deep/ has only 1 run.",
    ),
    "`loopwright eval` of a run that a program started": (
        ["eval", "finished"],
        "not from a run file",
    ),
    "`loopwright train --resume` of a run that a program started": (
        ["train", "--resume", "finished"],
        "It was started by a program. To resume it, run the program again:\n  ",
    ),
    "`loopwright train train.py`": (
        ["train", "train.py"],
        "Start the program itself:\n  python train.py",
    ),
    "`loopwright train runs/finished`": (
        ["train", "runs/finished"],
        "runs/finished is a run, and `loopwright train` takes",
    ),
    "`loopwright train nowhere.yaml`": (
        ["train", "nowhere.yaml"],
        "There is no file nowhere.yaml.",
    ),
    "`loopwright train FOLDER`": (
        ["train", "runs"],
        "runs is a folder, and `loopwright train` takes a run file (YAML). It has: none.",
    ),
    "`loopwright train`": (
        ["train"],
        "Name a run file, as in `loopwright train run.yaml`, or a run to resume, as in",
    ),
}


@pytest.mark.parametrize("what", MISUNDERSTOOD)
def test_what_is_not_meant_is_answered_with_what_to_do(
    what: str, gallery: Path, monkeypatch, shell: Shell, mistake
) -> None:
    monkeypatch.chdir(gallery)
    arguments, message = MISUNDERSTOOD[what]
    assert shell(*arguments) == 2
    assert message in shell.err
    assert shell.out == ""
    said = shell.err.replace(str(gallery), "...")
    mistake.said(
        "Command line",
        what,
        said,
        hide=r"id \S+\)|(?<=by a program )\(.*?\)(?=, not)|(?<=again:\n  ).*",
    )


def test_a_folder_is_answered_with_its_run_files(tmp_path: Path, shell: Shell) -> None:
    for name in ("run.yaml", "other.yml", "notes.txt"):
        (tmp_path / name).touch()
    assert shell("train", str(tmp_path)) == 2
    assert f"It has: {tmp_path / 'other.yml'}, {tmp_path / 'run.yaml'}." in shell.err


# Checkpoints


def test_one_rule_picks_the_checkpoint_of_every_command(
    in_gallery: Path, tmp_path: Path, shell: Shell
) -> None:
    run = in_gallery / "runs/finished"
    assert pick_checkpoint(Run(run)).path == run / KEPT
    assert find_source("finished", "runs") == run / KEPT
    assert find_weights(run) == run / KEPT  # what `loopwright.load_weights` loads
    shell("checkpoint", "show", "finished")
    assert shell.out.startswith(f"{run / KEPT}: kept model, ")
    shell("checkpoint", "diff", "finished", "twin")
    assert shell.out.startswith(f"first:  {run / KEPT}\n")
    shell("export", "finished", "-o", tmp_path / "x.safetensors")
    assert KEPT in shell.out


def test_a_run_that_kept_no_model_stands_for_its_newest_resume_point(
    gallery: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(gallery / "runs/finished", tmp_path / "run"))
    shutil.rmtree(run / "kept")
    assert pick_checkpoint(Run(run)).path == run / RESUME
    with raises("no-kept-model", "--checkpoint newest"):
        pick_checkpoint(Run(run), "best")
    cut(run / RESUME / "model.safetensors")
    assert pick_checkpoint(Run(run)).path == run / "checkpoints/update-00000008"
    cut(run / "checkpoints/update-00000008/model.safetensors")
    with raises("no-usable-checkpoint", "damaged", "loopwright checkpoint verify"):
        pick_checkpoint(Run(run))
    shutil.rmtree(run / "checkpoints")
    with raises("no-usable-checkpoint", "none is saved yet"):
        pick_checkpoint(Run(run))
