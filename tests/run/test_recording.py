"""Which directory a run gets, and the copies of its config and code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loopwright import ConfigurationError
from loopwright.run import RunDirectory, RunManifest
from loopwright.run.recording import (
    Destination,
    choose_directory,
    copy_modules,
    noting_failure,
    record_continuation,
    record_start,
    settings_of,
)


def choose(
    resume: Any = "auto",
    output_path: str | None = None,
    accept: str | None = "--go-on",
    **config: Any,
) -> Destination:
    return choose_directory(
        output_path, "first", "id-2", resume, config, changeable={"epochs"}, accept=accept
    )


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was interrupted, with lr 1."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory("runs/first/id-1")
    (run.path / "config.yaml").write_text("lr: 1\nepochs: 2\n")
    RunManifest.collect().changed(state="interrupted").write(run.manifest_path)
    return run.path


def test_an_unfinished_run_is_continued_although_changeable_keys_differ(unfinished: Path) -> None:
    assert choose(lr=1, epochs=9) == Destination(unfinished, is_new=False)


def test_a_run_of_another_config_is_left_alone_and_named(unfinished: Path) -> None:
    chosen = choose(lr=3, epochs=2)
    assert (chosen.path, chosen.is_new) == (Path("runs/first/id-2"), True)
    assert chosen.remark is not None
    assert "lr" in chosen.remark
    assert "pass --go-on" in chosen.remark
    assert not choose(lr=3, accept=None).is_new


def test_a_new_run_is_one_however_many_there_are(unfinished: Path) -> None:
    assert choose(False, lr=1) == Destination(Path("runs/first/id-2"), is_new=True)


def test_a_path_that_does_not_exist_is_no_run_to_continue(unfinished: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        choose("runs/frist", lr=1)


def test_settings_leave_out_everything_below_a_changeable_key() -> None:
    config = {"a": {"b": 1, "c": [2, 3]}, "ab": 4}
    assert settings_of(config, {"a.c"}) == {"a.b": 1, "ab": 4}
    assert settings_of(config, {"a"}) == {"ab": 4}


def test_modules_of_a_folder_are_copied_and_changes_since_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "recorded_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(folder)
    __import__("recorded_module")
    try:
        run = RunDirectory(tmp_path / "run")
        record_start(run, folder, "lr: 1\n", RunManifest.collect())
        assert (run.path / "recorded_module.py").read_text() == "x = 1\n"
        assert copy_modules(folder, run.path) == []
        (folder / "recorded_module.py").write_text("x = 2\n")
        lines = record_continuation(run, folder, "lr: 2\n")
        assert lines == ["The code has changed since the run began: recorded_module.py."]
        assert (run.config_path.read_text(), (run.path / "recorded_module.py").read_text()) == (
            "lr: 2\n",
            "x = 2\n",
        )
    finally:
        del sys.modules["recorded_module"]


def test_an_error_before_the_first_step_is_noted(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    RunManifest.collect().write(run.manifest_path)
    with pytest.raises(ZeroDivisionError), noting_failure(run):
        raise ZeroDivisionError("by nothing")
    manifest = RunManifest.read(run.manifest_path)
    assert (manifest.state, manifest.reason) == ("failed", "ZeroDivisionError: by nothing")
