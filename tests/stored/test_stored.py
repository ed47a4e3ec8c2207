"""Runs that earlier versions left behind are read, and gone on with to the end, as if they had
never been stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright
from loopwright.checkpoint import read_checkpoint
from loopwright.cli import main
from loopwright.run import Run, find_runs

from .make import PROGRAMS

HERE = Path(__file__).parent
STORED = sorted(path for path in HERE.glob("v*/*") if path.is_dir())
RUNS = [run for folder in STORED for run in find_runs(folder)]


def named(paths: list[Path]) -> Any:
    return pytest.mark.parametrize(
        "stored", paths, ids=["/".join(path.relative_to(HERE).parts[:2]) for path in paths]
    )


def assert_alike(one: Any, other: Any, where: str = "") -> None:
    """The same keys, counts and texts; the same numbers, but for what another processor computes
    otherwise."""
    if isinstance(one, Mapping):
        assert isinstance(other, Mapping), where
        assert list(one) == list(other), where
        for key, value in one.items():
            assert_alike(value, other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_alike(*pair, f"{where}/{number}")
    elif isinstance(one, torch.Tensor | float):
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    else:
        assert one == other, where


def newest_state(folder: Path) -> dict[str, Any]:
    """The resume point that has the most steps behind it."""
    trees = [read_checkpoint(manifest.parent).tree for manifest in folder.rglob("manifest.json")]
    return max(
        (tree for tree in trees if "progress" in tree), key=lambda tree: tree["progress"]["step"]
    )


@named(STORED)
def test_a_stored_run_goes_on_to_the_end_of_one_that_was_never_stopped(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[stored.name][0]
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole = program()
    shutil.copytree(stored, tmp_path / "again")
    monkeypatch.chdir(tmp_path / "again")
    again, state = program(), newest_state(stored)
    assert again.pop("calls") == whole.pop("calls") - state["progress"]["step"] > 0
    assert_alike(again, whole)
    lost = {name for name, own in state["callbacks"].items() if own} - newest_state(
        tmp_path / "again"
    )["callbacks"].keys()
    assert not lost, "callbacks are found by name: these were renamed, and began anew"


@named(STORED)
def test_the_weights_of_every_stored_checkpoint_can_be_loaded(stored: Path) -> None:
    found = [manifest.parent for manifest in stored.rglob("manifest.json")]
    assert found
    for path in found:
        for name in read_checkpoint(path).tree["models"]:
            weights = loopwright.load_weights(path, model=name)
            assert weights
            assert all(value.isfinite().all() for value in weights.values())


@named(RUNS)
def test_a_stored_run_directory_can_be_looked_at(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(stored, run)
    view = Run(run)
    assert view.state == "crashed"
    assert view.progress.update
    assert view.problems == []
    assert view.metrics.steps(view.step_names[0])
    assert all(view.metrics.epochs(name) for name in view.epoch_names)
    assert loopwright.load_weights(
        run, model=next(iter(read_checkpoint(view.checkpoints()[-1].path).tree["models"]))
    )
    assert main(["show", str(run)]) == 1  # as of any run that ended badly
    assert "crashed" in capsys.readouterr().out


def test_every_program_is_stored_and_both_formats_of_checkpoints_are() -> None:
    assert {path.name for path in STORED} == set(PROGRAMS)
    manifests = [json.loads(path.read_text()) for path in HERE.glob("v*/**/manifest.json")]
    assert {manifest["format"] for manifest in manifests if "history" in str(manifest)} == {2}
    assert {manifest["format"] for manifest in manifests} == {1, 2}
