"""`loopwright runs`, and which run a person means by a word."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from loopwright import ConfigurationError
from loopwright.cli import main
from loopwright.cli.selection import find_run
from loopwright.run import Run
from tests.cli.gallery import ROOT
from tests.cli.helpers import run_on_terminal

ALL = {"finished", "stopped", "failed", "interrupted", "killed", "deep/twin"}


@pytest.fixture
def runs(in_gallery, capsys):
    """The runs that a command lists, in its order."""

    def listed(*options: str) -> list[str]:
        assert main(["runs", *options, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return [str(Path(row["path"]).relative_to(in_gallery / "runs")) for row in rows]

    return listed


def test_table_has_a_row_for_each_run_with_state_progress_and_best_metric(in_gallery, capsys):
    assert main(["runs"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["RUN", "STATE", "PROGRESS", "BEST", "@EPOCH", "TIME", "AGE"]
    table = {row.split()[0]: row for row in rows}
    best = Run("runs/finished").best("eval_loss")
    assert set(table) == ALL
    assert (
        f" finished     3 of 3 epochs, 100%  eval_loss {best.value:.6g} @3  " in table["finished"]
    )
    assert "crashed      1 of 3 epochs, 67%" in table["killed"]


def test_newest_comes_first(runs):
    listed = runs()
    assert (listed[0], listed[1], listed[-1]) == ("killed", "deep/twin", "finished")


def test_tags_are_shown_and_filtered(configured, capsys):
    root = str(configured / "runs")
    assert main(["runs", root, "--tag", "demo"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.endswith("TAGS")
    assert [row.endswith("small demo") for row in rows] == [True, True]
    assert main(["runs", root, "--tag", "demo", "--tag", "large"]) == 0
    assert capsys.readouterr().out == f"No runs in {root} match.\n"


def test_json_says_everything_that_the_table_does(in_gallery, capsys):
    assert main(["runs", "--json", "--state", "crashed"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    best = Run("runs/killed").best("eval_loss")
    assert row["state"] == "crashed"
    assert row["progress"] == {
        "epoch": 1,
        "step": 8,
        "update": 8,
        "sample": 32,
        "limit": {"epoch": 3},
        "fraction": 2 / 3,
    }
    assert row["metric"] == {"name": "eval_loss", "value": best.value, "epoch": 1, "mode": "min"}
    assert row["age_seconds"] > 0


def test_a_damaged_run_is_listed_with_its_problem_and_so_are_the_others(gallery, tmp_path, capsys):
    for name in ("finished", "failed", "stopped"):
        shutil.copytree(gallery / "runs" / name, tmp_path / name)
    (tmp_path / "finished/metrics.sqlite").write_bytes(b"\0" * 1000)
    (tmp_path / "failed/run.json").write_text("{")
    (tmp_path / "stopped/config.yaml").write_text("a: [")
    assert main(["runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "unreadable" in printed
    for part in ("finished: The metrics in", "failed: ", "stopped: "):
        assert any(line.startswith(part) for line in printed.splitlines()[4:])


def test_text_of_a_run_cannot_control_the_terminal(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    hostile = {
        "id": "\x1b[2J",
        "name": "\x1b[31mred",
        "state": "finished",
        "tags": ["\x1b]0;t\x07"],
        "created": "?",
    }
    (tmp_path / "run/run.json").write_text(
        json.dumps({**hostile, "command": ["\x1b[2J"], "other": "\x1b[1m"})
    )
    for command in (["runs", str(tmp_path)], ["show", str(tmp_path / "run"), "--all"]):
        assert main(command) == 0
        assert "\x1b" not in capsys.readouterr().out


MISTAKES = {
    "an unknown state": (["--state", "done"], "--state done: a run is one of running, crashed"),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_filter_that_means_nothing_is_refused(in_gallery, capsys, options, message):
    assert main(["runs", *options]) == 2
    assert message in capsys.readouterr().err


def test_table_fits_a_narrow_terminal(gallery):
    code, shown = run_on_terminal("runs", gallery / "runs", columns=70, group=())
    plain = [line for line in strip_styles(shown).splitlines() if line]
    assert code == 0
    assert max(map(len, plain)) <= 70
    assert "\x1b[31mcrashed" in shown
    assert all(word in strip_styles(shown) for word in ("RUN", "STATE", "AGE", "interrupted"))


def strip_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "")


# Which run is meant


@pytest.mark.parametrize(
    "text",
    [
        *[
            "runs/deep/twin",
            "deep/twin",
            "deep/twin/",
            "runs/deep/twin/run.json",
            "twin",
            "twi",
            "deep",
            "last~1",
        ],
        str(ROOT / ".." / "ABSOLUTE"),
    ],
)
def test_a_run_is_found_by(in_gallery, text):
    text = text.replace(str(ROOT / ".." / "ABSOLUTE"), str(in_gallery / "runs/deep/twin"))
    assert find_run(text).path == in_gallery / "runs/deep/twin"


ERRORS = {
    "stoped": "There is no run 'stoped' in runs/. Did you mean:\n  stopped  (stopped, id ",
    "f": "'f' could be any of 2 runs:\n  failed  (failed, id ",
    "qqqqqqqq": "There is no run 'qqqqqqqq' in runs/. The newest are:\n  killed  (crashed, id ",
    "last~6": "There is no run 'last~6': runs/ has only 6 runs.",
}


@pytest.mark.parametrize(("text", "message"), ERRORS.items(), ids=ERRORS.keys())
def test_a_run_that_is_not_found_is_answered_with_candidates(in_gallery, text, message):
    with pytest.raises(ConfigurationError) as caught:
        find_run(text)
    assert str(caught.value).startswith(message)


def test_without_any_runs_the_error_says_where_was_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigurationError,
        match=r"There is no run 'x'\. There are no runs in runs/ \(there is no such folder\)",
    ):
        find_run("x")
    os.mkdir("runs")
    with pytest.raises(ConfigurationError, match="There are no runs in runs/ yet"):
        find_run("last")
