"""Starting a run where that cannot go well: a message before the first step, and nothing half
done."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.checkpoint.atomic import clean_leftovers, staged_file
from loopwright.cli.app import main
from loopwright.errors import ConfigurationError
from loopwright.run import Run, RunDirectory
from loopwright.run.directory import is_locked

from ..loops import build_net
from ..runs import adam, assert_same_run, cross_entropy
from .test_full_disk import fill


class Counted(Trainer):
    """Counts the steps that were taken."""

    num_steps = 0

    def train_step(self, batch: Any) -> Any:
        self.num_steps += 1
        return super().train_step(batch)


def build(run_dir: str | Path) -> Counted:
    return Counted(build_net(), adam, cross_entropy, run_dir=run_dir, progress="silent")


def refused(run_dir: str | Path, points: TensorDataset) -> Counted:
    """A trainer whose run there must be refused before its first step."""
    trainer = build(run_dir)
    try:
        trainer.train(points, 2, batch_size=8)
    finally:
        assert trainer.num_steps == 0
    return trainer


def in_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in another process, which is gone then."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    if (process := os.fork()) == 0:
        theirs.send(function())
        os._exit(0)
    os.waitpid(process, 0)
    return ours.recv()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that cannot be written to, by root neither."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_disk_that_is_full_is_said_before_the_first_step(
    points: TensorDataset, small_disk: Path, mistake: Any
) -> None:
    build(small_disk / "run").train(points, 1, batch_size=8)
    fill(small_disk / "filler")
    for run_dir in (small_disk / "run", small_disk / "another"):
        what = f'`run_dir="disk/{run_dir.name}"` on a disk that is full'
        with mistake(
            "Files",
            what,
            ConfigurationError,
            match="No space left.*free some space",
            hide=r"\.tmp-\S+",
        ):
            refused(run_dir, points)
    (small_disk / "filler").unlink()
    assert not is_locked(small_disk / "run" / ".lock")
    resumed = build(small_disk / "run")
    resumed.train(points, 2, batch_size=8)
    assert resumed.progress.epoch == 2


def test_a_folder_that_is_read_only_is_said_before_the_first_step(
    points: TensorDataset, read_only: Path, mistake: Any
) -> None:
    with mistake(
        "Files",
        '`run_dir="disk/run"` on a disk that is read-only',
        ConfigurationError,
        match="make it writable",
    ):
        refused(read_only / "run", points)


@pytest.mark.parametrize("name", ["run.json", "metrics.sqlite", ".lock"])
def test_a_folder_in_place_of_a_file_of_the_run_is_said(
    name: str, points: TensorDataset, tmp_path: Path
) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        refused(tmp_path / "run", points)
    assert os.listdir(tmp_path / "run") == [name]


def test_a_run_does_not_write_over_a_config_that_is_not_its_own(
    points: TensorDataset, tmp_path: Path, mistake: Any
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.yaml").write_text("mine: 1\n")
    with mistake(
        "Files",
        "`run_dir=` a folder with a `config.yaml` of your own",
        ConfigurationError,
        match="overwrite",
    ):
        refused(tmp_path / "project", points)
    assert os.listdir(tmp_path / "project") == ["config.yaml"]


def test_a_parent_that_is_a_file_is_said(
    points: TensorDataset, tmp_path: Path, mistake: Any
) -> None:
    (tmp_path / "runs").write_text("")
    with mistake(
        "Files",
        '`run_dir="runs/first"` where `runs` is a file',
        ConfigurationError,
        match="choose another",
    ):
        refused(tmp_path / "runs" / "first", points)


# Names


def test_a_run_in_a_folder_whose_name_is_not_utf8_is_resumed(
    points: TensorDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / os.fsdecode(b"caf\xe9")
    whole = build(tmp_path / "whole")
    whole.train(points, 3, batch_size=8)
    build(run_dir).train(points, 1, batch_size=8)
    resumed = build(run_dir)
    resumed.train(points, 3, batch_size=8)
    assert resumed.num_steps < whole.num_steps
    assert_same_run(resumed, whole)
    again = build(run_dir)
    again.run.progress_style = "lines"
    again.train(points, 3, batch_size=8)
    assert "caf\\udce9 is finished" in capfd.readouterr().out
    assert main(["show", str(run_dir)]) == 0
    again.save(run_dir / "saved")
    build(tmp_path / "third").load(run_dir / "saved")


# Locks


@pytest.mark.parametrize("spelling", ["link", "dots", "relative"])
def test_one_directory_under_two_names_has_one_lock(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    other = {
        "link": tmp_path / "link",
        "dots": tmp_path / "run" / ".." / "run",
        "relative": Path("run"),
    }[spelling]
    first, second = RunDirectory(tmp_path / "run").lock(), RunDirectory(other)
    with pytest.raises(ConfigurationError, match="is being written by this process"):
        second.lock()
    second.unlock()
    assert is_locked(other / ".lock")  # asked by a name that it was not taken under
    assert in_fork(lambda: is_locked(tmp_path / "run" / ".lock"))
    first.unlock()
    assert not in_fork(lambda: is_locked(tmp_path / "run" / ".lock"))
    second.lock().unlock()


# Leftovers


def test_what_a_killed_process_left_is_removed_by_the_next_owner(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    gone = in_fork(os.getpid)
    left = [
        directory.path / f".run.json.tmp-{gone}-0123abcd",
        directory.checkpoints / f".update-00000001.tmp-{gone}-0123abcd",
        directory.kept / f".update-00000001.tmp-{gone}-0123abcd",
        directory.artifacts / f".table.json.tmp-{gone}-0123abcd",
    ]
    left[0].write_text("{")
    left[1].mkdir()
    (left[1] / "state.json").write_text("{")
    left[2].symlink_to(tmp_path)
    left[3].write_text("{")
    own = [directory.artifacts / ".notes.tmp", directory.path / ".hidden-by-me"]
    for path in own:
        path.write_text("mine")
    assert all(os.path.lexists(path) for path in left)
    directory.lock().unlock()
    assert not any(os.path.lexists(path) for path in left)
    assert all(path.read_text() == "mine" for path in own)
    assert tmp_path.is_dir()


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    with staged_file(tmp_path / "a.json") as staging:
        staging.write_text("{}")
        assert clean_leftovers(tmp_path) == []
    assert os.listdir(tmp_path) == ["a.json"]


# Reading a config that somebody made up

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
CONFIGS = {
    "an alias bomb": (BOMB, "has an alias"),
    "deep nesting": ("a: " + "[" * 100_000 + "]" * 100_000, "nested more than 50 levels deep"),
    "an alias of itself": ("a: &a [1, *a]\n", "has an alias"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_run_with_a_made_up_config_is_shown_without_it(
    kind: str, tmp_path: Path, points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = CONFIGS[kind]
    build(tmp_path / "run").train(points, 1, batch_size=8)
    (tmp_path / "run" / "config.yaml").write_text(text)
    for command in (["show", str(tmp_path / "run"), "--json"], ["runs", str(tmp_path), "--json"]):
        main(command)
        assert len(capsys.readouterr().out) < 100_000
    view = Run(tmp_path / "run")
    assert view.config_file is None
    assert said in view.problems[-1]
    assert view.state == "finished"
