"""`loopwright check CONFIG`: every mistake that would appear in hour three appears now, with its
place and a remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from loopwright.cli import main
from loopwright.cli.check import check_config
from tests.cli.check.mistakes import MISTAKES, NOTES, WELL, callback
from tests.cli.check.projects import CONFIG, MODULE


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    (folder / "checked.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(autouse=True)
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm" if Path("/dev/shm").is_dir() else None)
    for limit in ("SLOW_SECONDS", "MAX_SECONDS"):
        # a slow machine would be shown less
        monkeypatch.setattr(f"loopwright.cli.check.{limit}", float("inf"))


def line_of(text: str) -> int:
    """Where in the config a text is."""
    return next(number for number, line in enumerate(CONFIG.splitlines(), start=1) if text in line)


@pytest.mark.parametrize(("overrides", "key", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_found_with_its_place(overrides, key, words):
    found = check_config("run.yaml", overrides).mistakes
    fitting = [mistake for mistake in found if re.search(words, mistake.message)]
    assert len(fitting) == 1, "\n".join(map(str, found))
    assert fitting[0].key.startswith(key)
    assert fitting[0].file.endswith("run.yaml") or fitting[0].file == "command line"


@pytest.mark.parametrize(("overrides", "key", "words"), NOTES.values(), ids=NOTES)
def test_note_is_no_mistake_and_names_its_place(overrides, key, words):
    report = check_config("run.yaml", overrides)
    assert report.mistakes == []
    assert [note.key for note in report.notes if re.search(words, note.message)] == [key]


@pytest.mark.parametrize("overrides", WELL.values(), ids=WELL)
def test_nothing_is_found_where_all_is_well(overrides):
    report = check_config("run.yaml", overrides)
    assert report.mistakes == []
    assert {"resuming", "saving and loading", "training steps"} <= set(report.checked)


def test_without_a_seed_runs_are_not_compared():
    report = check_config("run.yaml", ["seed=null"])
    assert report.mistakes == []
    assert "resuming was not checked" in report.notes[0].message
    assert "resuming" not in report.checked


def test_a_config_that_is_well_passes_and_says_what_was_checked(capsys):
    assert main(["check", "run.yaml"]) == 0
    printed = capsys.readouterr().out
    for words in (
        *(
            "the config",
            "data set train",
            "data set test",
            "training steps",
            "evaluation and prediction on test",
        ),
        *("1 callback", "saving and loading", "resuming", "the run directory"),
        "parameters  67\n",
        "No mistakes found in run.yaml",
    ):
        assert words in printed


def test_nothing_is_written_beside_the_config(project):
    before = {
        path: path.stat().st_mtime_ns
        for path in project.rglob("*")
        if "__pycache__" not in path.parts
    }
    main(["check", "run.yaml"])
    assert {
        p: p.stat().st_mtime_ns for p in project.rglob("*") if "__pycache__" not in p.parts
    } == before


def test_mistakes_in_several_parts_are_reported_at_once():
    overrides = [
        *("datasets.test.kind=checked.OddLast", "output_path=checked.py/out"),
        *callback("BestCheckpoint", "metric=test_loss", "every_n_updates=500"),
    ]
    keys = {mistake.key for mistake in check_config("run.yaml", overrides).mistakes}
    assert keys == {"datasets.test", "output_path"}


def test_each_of_several_failing_callbacks_is_named():
    kinds = ("Late", "Unsavable", "Text")
    added = [
        f"+trainer.callbacks.{number}.kind=checked.{kind}"
        for number, kind in enumerate(kinds, start=1)
    ]
    found = check_config("run.yaml", added).mistakes
    assert sorted(mistake.key for mistake in found) == [
        f"trainer.callbacks.{number}" for number in (1, 2, 3)
    ]


def test_callbacks_with_the_same_mistake_are_both_named():
    added = [
        f"+trainer.callbacks.{number}={{kind: EarlyStopping, metric: {metric}}}"
        for number, metric in ((1, "test_los"), (2, "tset_loss"))
    ]
    found = check_config("run.yaml", added).mistakes
    assert [mistake.key for mistake in found] == ["trainer.callbacks.1", "trainer.callbacks.2"]


def test_mistake_is_printed_with_file_and_line_and_the_exit_code_is_1(project, capsys):
    assert main(["check", "run.yaml", "datasets.train.kind=checked.OddLast"]) == 1
    assert main(["check", "run.yaml", "+model.inputs=5"]) == 1
    printed = capsys.readouterr().out
    assert "1 mistake in run.yaml:" in printed
    assert f"run.yaml:{line_of('trainer:')}: trainer" in printed
    line = MODULE.splitlines().index("        return self.body(x)") + 1
    assert f"{project / 'checked.py'}:{line}, in forward: return self.body(x)" in printed


@pytest.mark.parametrize("is_first", [True, False])
def test_json_has_all_of_it(capsys, is_first):
    arguments = ["run.yaml", "trainer.callbacks.0.every_n_updates=1000"]
    assert main(["check", *(["--json", *arguments] if is_first else [*arguments, "--json"])]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [mistake["key"] for mistake in found["mistakes"]] == ["trainer.callbacks.0"]
    assert found["ok"] is False
    assert found["parameters"] == 4 * 8 + 8 + 8 * 3 + 3


def test_random_generators_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check_config("run.yaml")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_missing_config_has_exit_code_2(capsys):
    assert main(["check", "nowhere.yaml"]) == 2
    assert "[not-a-run-file]" in capsys.readouterr().err
