"""CSV and JSONL: what they write, read back by Python's own modules."""

from __future__ import annotations

import json
import math

import pandas
import pytest

from loopwright.trackers import CSV, JSONL, TrackedRow, TrackedRun
from loopwright.trackers.files import CSVFile, JSONLFile
from tests.mistakes import raises

from .runs import (
    CONTENTS,
    IMAGE,
    LogMedia,
    build,
    losses_in_csv,
    read_csv,
    read_jsonl,
    step_losses,
    train,
)


def row(step: int, kind: str = "step", epoch: int = 0, **values: float) -> TrackedRow:
    return TrackedRow(kind, step, step, epoch, 8 * step, 0.5, 1e9, values)


def test_every_step_and_epoch_is_a_line_with_the_exact_values_of_the_history(tmp_path):
    path = tmp_path / "logs" / "run.csv"
    trainer = train(build([CSV(path)]))
    assert losses_in_csv(path) == list(step_losses(trainer).items())
    epochs = [line for line in read_csv(path) if line["kind"] == "epoch"]
    assert [int(line["step"]) for line in epochs] == [5, 10]
    assert [float(line["epoch/loss"]) for line in epochs] == trainer.history["loss"]
    assert [float(line["eval_loss"]) for line in epochs] == trainer.history["eval_loss"]
    frame = pandas.read_csv(path)
    assert list(frame["samples"][frame.kind == "step"]) == [8 * step for step in range(1, 11)]
    assert list(frame["epoch"][frame.kind == "epoch"]) == [1, 2]


def test_jsonl_has_the_config_every_row_all_media_and_the_end(tmp_path):
    path = tmp_path / "run.jsonl"
    trainer = train(build([LogMedia(), JSONL(path)]))
    lines = read_jsonl(path)
    assert lines[0]["kind"] == "start"
    assert lines[0]["config"]["optimizer.lr"] == 0.01
    assert lines[0]["config"]["batch_size"] == 8
    assert {line["step"]: line["loss"] for line in lines if line["kind"] == "step"} == step_losses(
        trainer
    )
    assert [line["eval_loss"] for line in lines if line["kind"] == "epoch"] == trainer.history[
        "eval_loss"
    ]
    assert lines[-1] == {"kind": "end", "state": "finished", "reason": None}
    media = {line["name"]: line for line in lines if line.get("name") in CONTENTS}
    assert {line["step"] for line in media.values()} == {3}
    assert media["samples"]["captions"] == ["red", "blue"]
    assert (tmp_path / media["samples"]["files"][0]).read_bytes() == IMAGE
    assert (media["weights"]["edges"], media["weights"]["counts"]) == ([0.0, 1.0, 2.0], [3, 4])
    assert media["note"]["text"] == "a <b>text</b>"
    assert media["errors"]["rows"] == [["a|b", 1], ["c", None]]


def test_csv_has_media_as_files_beside_it(tmp_path):
    train(build([LogMedia(), CSV(tmp_path / "run.csv")]))
    folder = tmp_path / "run_media"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("errors-3.csv", "note-3.txt", "samples-3-1.png", "samples-3-2.png", "weights-3.json")
    ]
    assert (folder / "samples-3-1.png").read_bytes() == IMAGE
    assert (folder / "errors-3.csv").read_text().splitlines() == ["word,count", "a|b,1", "c,"]
    assert json.loads((folder / "weights-3.json").read_text())["counts"] == [3, 4]


def test_every_leaves_out_steps_and_no_epoch(tmp_path):
    train(build([CSV(tmp_path / "run.csv", every=4)]))
    assert [(line["kind"], line["step"]) for line in read_csv(tmp_path / "run.csv")] == [
        *(("step", "4"), ("epoch", "5"), ("step", "8"), ("epoch", "10"))
    ]


def test_the_file_of_another_run_is_kept_under_another_name_and_that_is_said(tmp_path, caplog):
    path = tmp_path / "run.csv"
    path.write_text("mine\n")
    train(build([CSV(path)]))
    assert (tmp_path / "run-2.csv").read_text() == "mine\n"
    assert "run.csv belongs to another run; it was renamed to run-2.csv" in caplog.text
    assert len(losses_in_csv(path)) == 10


def test_a_metric_that_comes_later_is_a_new_column(tmp_path):
    tracker = CSVFile(tmp_path / "run.csv")
    tracker.start(TrackedRun("run"))
    tracker.log([row(1, loss=0.5)])
    tracker.log([row(2, loss=0.25, **{'a "name", with signs': 3.0})])
    tracker.finish("finished", None)
    first, second = read_csv(tmp_path / "run.csv")
    assert (first["loss"], first['a "name", with signs']) == ("0.5", "")
    assert (second["loss"], second['a "name", with signs']) == ("0.25", "3.0")


def test_metrics_that_are_named_as_a_column_of_the_place_are_not_lost(tmp_path):
    for tracker in (CSVFile(tmp_path / "run.csv"), JSONLFile(tmp_path / "run.jsonl")):
        tracker.start(TrackedRun("run"))
        tracker.log([TrackedRow("step", 1, 1, 0, 8, 0.5, 1e9, {"epoch": 3.5})])
        tracker.finish("finished", None)
    assert read_csv(tmp_path / "run.csv")[0]["metric/epoch"] == "3.5"
    assert read_jsonl(tmp_path / "run.jsonl")[1]["metric/epoch"] == 3.5


def test_values_that_are_not_finite_are_read_back(tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    for tracker in (CSVFile(tmp_path / "run.csv"), JSONLFile(tmp_path / "run.jsonl")):
        tracker.start(TrackedRun("run"))
        tracker.log([TrackedRow("step", 1, 1, 0, 8, 0.5, 1e9, values)])
        tracker.finish("finished", None)
    text = (tmp_path / "run.jsonl").read_text()
    line = json.loads(
        text.splitlines()[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    for found in (read_csv(tmp_path / "run.csv")[0], line):
        assert math.isnan(float(found["a"]))
        assert (float(found["b"]), float(found["c"])) == (math.inf, -math.inf)


@pytest.mark.parametrize("kind", [CSVFile, JSONLFile])
def test_a_resumed_file_loses_what_comes_after_and_lines_that_are_damaged(tmp_path, kind):
    path = tmp_path / "run"
    tracker = kind(path)
    tracker.start(TrackedRun("run"))
    tracker.log(
        [row(1, loss=1.0), row(2, loss=2.0), row(2, "epoch", 1, eval_loss=2.5), row(3, loss=3.0)]
    )
    tracker.log([row(4, loss=4.0), row(4, "epoch", 2, eval_loss=4.5)])
    with open(path, "ab") as file:
        file.write(b"\0\0\n")  # a power failure
        file.write(b"step,5,5,0,")  # the process was killed here
    tracker = kind(path)
    tracker.start(TrackedRun("run", step=3, epoch=1))
    tracker.log([row(4, loss=40.0)])
    tracker.finish("finished", None)
    lines = (
        read_csv(path) if kind is CSVFile else [line for line in read_jsonl(path) if "wall" in line]
    )
    assert [(line["kind"], int(line["step"])) for line in lines] == [
        *(("step", 1), ("step", 2), ("epoch", 2), ("step", 3), ("step", 4))
    ]
    assert float(lines[-1]["loss"]) == 40.0


def test_an_epoch_that_was_complete_and_is_not_at_the_resume_point_is_removed(tmp_path):
    """A run that was killed in the evaluation after its last update resumes at the very step of the
    epoch's row."""
    tracker = CSVFile(tmp_path / "run.csv")
    tracker.start(TrackedRun("run"))
    tracker.log([row(2, loss=2.0), row(2, "epoch", 1, eval_loss=2.5)])
    tracker.start(TrackedRun("run", step=2, epoch=0))
    tracker.log([row(2, "epoch", 1, eval_loss=2.5)])
    tracker.finish("finished", None)
    assert [line["kind"] for line in read_csv(tmp_path / "run.csv")] == ["step", "epoch"]


@pytest.mark.parametrize("kind", [CSV, JSONL])
def test_a_folder_is_no_file_to_write_and_stays_where_it_is(tmp_path, kind):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "note").write_text("kept")
    with raises("log-is-folder", runs):
        kind(runs)
    assert (runs / "note").read_text() == "kept"
