from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from loopwright.dashboard.summary import sentences
from loopwright.run import MetricsStore, Run, update_manifest
from loopwright.run.directory import RunDirectory
from loopwright.run.metrics_view import Event

from .serving import serving
from .small_runs import step_rows, write_run

STORED = Path(__file__).parents[1] / "stored" / "v0_first_edition"


def event(kind: str) -> Event:
    return Event(1, kind, "", {}, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("finished", None, ["Finished after 2 epochs (50 updates) in 500 ms on cpu."]),
        (
            "stopped",
            "early stopping",
            [
                "Stopped after 2 of 4 epochs (50 updates) in 500 ms on cpu.",
                "Reason: early stopping.",
            ],
        ),
        (
            "failed",
            "ValueError: no\nmore",
            [
                "Failed after 2 of 4 epochs (50 updates) in 500 ms on cpu.",
                "Reason: ValueError: no.",
            ],
        ),
        (
            "interrupted",
            "SIGTERM",
            ["Interrupted after 2 of 4 epochs (50 updates) in 500 ms on cpu.", "Reason: SIGTERM."],
        ),
    ],
)
def test_the_first_sentences_say_how_a_run_ended(
    tmp_path: Path, state: str, reason: str | None, expected: list[str]
):
    run = write_run(tmp_path / "a", media=False)
    update_manifest(run / "run.json", state=state, reason=reason)
    told = sentences(Run(run))
    assert told[: len(expected)] == expected
    assert "Best eval_loss 0.25 in epoch 2." in told
    assert ("The same program or command resumes it." in told) is (state == "interrupted")


def test_what_happened_on_the_way_is_counted(tmp_path: Path):
    run = Run(write_run(tmp_path / "a", media=False))
    kinds = [
        "started",
        "resumed",
        "resumed",
        "rewind",
        "micro_batches",
        "micro_batches",
        "micro_batches",
        "signal",
    ]
    told = sentences(run, map(event, kinds))
    assert not any("anew" in sentence for sentence in told)
    assert "Restarted from the beginning once, because there was no resume point." in sentences(
        run, map(event, ["started", "started"])
    )
    assert told[-4:] == [
        "Resumed twice.",
        "Rewound once because of values that were not finite, or a spike.",
        "Batches were split 3 times because memory ran out.",
        "Received 1 signal.",
    ]


def test_a_running_run_has_its_time_of_training_and_what_is_left(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    update_manifest(run / "run.json", state="running")
    with RunDirectory(run):
        told = sentences(Run(run))
    assert told[0] == "Running: 2 of 4 epochs (50 updates) in 500 ms on cpu."
    assert any(sentence.startswith("About ") and sentence.endswith(" left.") for sentence in told)
    assert sentences(Run(run))[0] == "Crashed after 2 of 4 epochs (50 updates) in 500 ms on cpu."


def test_the_time_between_a_crash_and_a_resume_is_not_counted(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    update_manifest(run / "run.json", state="running")
    manifest = run / "run.json"
    created = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 86_400))
    manifest.write_text(manifest.read_text().replace(Run(run).manifest["created"], created))
    store = MetricsStore(run / "metrics.sqlite")
    store.add_steps(step_rows(51, 100))
    store.close()
    with RunDirectory(run), serving(tmp_path) as served:
        (summary,) = served.data("/api/runs")["runs"]
    assert (summary["seconds"], summary["rate"]) == (1.0, 100.0)


def test_runs_of_the_first_edition_are_shown_with_their_epochs_along_the_steps(tmp_path: Path):
    shutil.copytree(STORED / "accumulating" / "run", tmp_path / "old")
    with serving(tmp_path) as served:
        answer = served.data("/api/run/old")
        curves = served.data("/api/curves?run=old&name=loss&name=eval_loss")["curves"]
    assert answer["problems"] == []
    assert answer["sentences"][0] == "Crashed after 2 epochs (7 updates) on cpu."
    levels = {(curve["name"], curve["level"]): curve["columns"]["x"] for curve in curves}
    assert levels["loss", "step"] == list(range(1, 15))
    assert levels["loss", "epoch"] == levels["eval_loss", "epoch"] == [6, 12]
    assert sorted(path.name for path in (tmp_path / "old").glob("metrics*")) == ["metrics.sqlite"]


def test_a_crashed_run_continues_from_a_resume_point_only_where_there_is_one(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    update_manifest(run / "run.json", state="running")
    assert sentences(Run(run))[-1].endswith(
        "resumes it from the beginning, because there is no resume point yet."
    )
    shutil.copytree(next(STORED.rglob("checkpoints")), run / "checkpoints")
    assert sentences(Run(run))[-1].endswith("resumes it from its last resume point.")
