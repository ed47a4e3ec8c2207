"""What a run says about itself."""

import json
import os
import subprocess
import sys

import pytest
import torch

from loopwright._version import __version__
from loopwright.errors import CheckpointError
from loopwright.run import Run, RunManifest, update_manifest
from loopwright.run.manifest import WorkTree

IDENTITY = {
    f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def git(directory, *arguments):
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    environment = os.environ | IDENTITY
    done = subprocess.run(
        command, cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def test_a_manifest_says_what_runs_and_on_what():
    manifest = RunManifest.collect(device="cuda:0", seed=7)
    assert manifest.torch == torch.__version__
    assert manifest.loopwright == __version__
    assert manifest.command == [sys.executable, *sys.argv]
    assert (manifest.device, manifest.seed, manifest.state) == ("cuda:0", 7, "running")


def test_an_update_changes_state_and_progress_and_nothing_else(tmp_path):
    path = tmp_path / "run.json"
    first = RunManifest.collect()
    first.write(path)
    update_manifest(path, progress={"update": 5, "epoch": 1})
    update_manifest(path, state="stopped", reason="early stopping", progress={"update": 9})
    read = RunManifest.read(path)
    assert (read.id, read.created, read.command) == (first.id, first.created, first.command)
    assert (read.state, read.reason, read.progress) == (
        "stopped",
        "early stopping",
        {"update": 9, "epoch": 1},
    )


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"id": 1}', "{" * 100_000, '{"id":1,"created":1,"command":1,"state":"x"}'],
)
def test_a_damaged_manifest_is_refused_by_name(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json"):
        RunManifest.read(tmp_path / "run.json")


def test_entries_of_a_later_version_are_passed_over(tmp_path):
    RunManifest.collect().write(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text()) | {"invented": 1}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert RunManifest.read(tmp_path / "run.json").state == "running"


def test_the_commit_of_a_packed_branch_is_found(repository):
    git(repository, "pack-refs", "--all")
    assert WorkTree(repository).commit == git(repository, "rev-parse", "HEAD")


def test_the_commit_of_a_worktree_is_found(repository, tmp_path_factory):
    other = tmp_path_factory.mktemp("worktrees") / "other"
    git(repository, "worktree", "add", "-b", "side", str(other))
    (other / "train.py").write_text("two")
    git(other, "commit", "-am", "two")
    assert WorkTree(other).commit == git(other, "rev-parse", "HEAD")


@pytest.mark.parametrize("head", [b"", b"ref: refs/heads/absent", b"\xff\xfe", b"nonsense"])
def test_a_broken_repository_does_not_fail_the_run(repository, head):
    (repository / ".git" / "HEAD").write_bytes(head)
    tree = WorkTree(repository)
    assert (tree.commit, tree.is_dirty) == (None, None)


def test_a_file_changed_and_staged_is_a_change(repository):
    (repository / "train.py").write_text("changed")
    git(repository, "add", "train.py")
    assert WorkTree(repository).is_dirty is True


def slow_git(folder, monkeypatch, seconds):
    """Put a git in front of the real one that takes its time."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\nexec sleep {seconds}\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_git_that_does_not_answer_is_ended(repository, tmp_path, monkeypatch):
    slow_git(tmp_path / "bin", monkeypatch, 600)
    monkeypatch.setattr("loopwright.run.manifest.SECONDS_FOR_STATUS", 0.05)
    tree = WorkTree(repository).ask()
    assert not tree.is_answered
    assert tree.is_dirty is None
    assert tree.is_answered


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("planned", {"limit": "ten"}),
        ("planned", {"limit": ["parsec", 3]}),
        ("planned", {"limit": ["epoch", 3], "update": "many"}),
        ("progress", {"epoch": "three"}),
        ("changes", [{"update": 1}]),
        ("watched", [{}]),
        ("state", "asleep"),
    ],
)
def test_a_run_with_an_entry_that_was_changed_by_hand_is_read_and_says_which(
    tmp_path, entry, value
):
    RunManifest.collect(name="first").changed(state="finished").write(tmp_path / "run.json")
    manifest = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(manifest | {entry: value}))
    run = Run(tmp_path)
    assert (run.name, run.changes, str(run.progress)) == ("first", [], "-")
    assert run.as_json()["state"] == ("unreadable" if entry == "state" else "finished")
    assert [problem.endswith(f"a run writes: {entry}.") for problem in run.problems] == [True]


def test_a_name_in_the_user_s_own_config_does_not_name_the_run(tmp_path):
    manifest = RunManifest.collect().changed(facts={"config": {"name": "resnet50", "tags": 5}})
    manifest.write(tmp_path / "run.json")
    run = Run(tmp_path)
    assert (run.name, run.tags, run.config["name"]) == (tmp_path.name, (), "resnet50")
