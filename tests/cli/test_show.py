"""`loopwright show`."""

from __future__ import annotations

import json

import pytest

from loopwright.cli import main
from loopwright.run import Run


def facts(printed: str) -> dict[str, str]:
    """The indented lines of a run, by their first word."""
    lines = [line.split(None, 1) for line in printed.splitlines() if line.startswith("  ")]
    return {words[0]: words[1] for words in lines if len(words) == 2}


def test_show_prints_what_ran_and_how_it_ended(in_gallery, capsys):
    assert main(["show", "finished"]) == 0
    found = facts(capsys.readouterr().out)
    assert (found["state"], found["progress"], found["seed"]) == (
        "finished",
        "3 of 3 epochs, 100%",
        "0",
    )
    assert found["id"] == Run("runs/finished").id


@pytest.mark.parametrize(
    ("run", "code", "state"),
    [
        ("stopped", 0, "stopped: enough"),
        ("interrupted", 0, "interrupted: SIGTERM"),
        ("failed", 1, "failed: RuntimeError: boom"),
        (
            "killed",
            1,
            "crashed: its process ended without recording a reason; start the same program or "
            "command to resume it",
        ),
    ],
)
def test_show_says_why_a_run_ended_and_exits_with_1_if_it_broke(
    in_gallery, capsys, run, code, state
):
    assert main(["show", run]) == code
    assert facts(capsys.readouterr().out)["state"] == state


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [(True, "abc, with uncommitted changes"), (False, "abc"), (None, "abc, maybe changed")],
)
def test_show_says_what_is_known_about_the_code(in_gallery, tmp_path, capsys, dirty, expected):
    manifest = {**Run("runs/finished").manifest, "git_commit": "abc", "git_dirty": dirty}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    main(["show", str(tmp_path)])
    assert facts(capsys.readouterr().out)["code"] == expected


def test_show_lists_metrics_and_checkpoints(in_gallery, capsys):
    main(["show", "finished"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    best = Run("runs/finished").best("eval_loss")
    assert ["eval_loss", f"{best.value:.6g}", f"{best.value:.6g}", "(min)", "3", "3"] in lines
    assert [line[0] for line in lines if line and line[-1] == "ok"] == [
        "checkpoints/update-00000008",
        "checkpoints/update-00000012",
        "kept/update-00000012",
    ]


def test_show_as_json_has_every_epoch_and_the_manifest(in_gallery, capsys):
    assert main(["show", "finished", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    run = Run("runs/finished")
    assert found["metrics"]["loss"] == [
        {"epoch": point.at, "update": point.update, "value": point.value}
        for point in run.metrics.epochs("loss")
    ]
    assert found["manifest"] == run.manifest
    assert found["config"] is None
