from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .serving import Served, serving
from .small_runs import png, step_rows, write_run


def test_the_table_has_state_progress_best_metric_and_flat_config(served: Served):
    answer = served.data("/api/runs")
    runs = {run["id"]: run for run in answer["runs"]}
    assert list(runs) == ["first", "sweep/width=16", "sweep/width=8"]
    first = runs["first"]
    assert first["state"] == "finished"
    assert first["progress"] == {
        "fraction": 0.5,
        "epoch": 2,
        "step": 50,
        "update": 50,
        "sample": 400,
        "limit": {"epoch": 4},
    }
    assert first["metric"] == {"name": "eval_loss", "value": 0.25, "epoch": 2, "mode": "min"}
    assert first["config"] == {"model.width": 32, "optimizer.lr": 0.1, "trainer.max_epochs": 4}
    assert first["last"] == {"loss": 0.45, "lr": 0.1, "eval_loss": 0.25}
    assert (first["step_names"], first["tags"], first["problems"]) == (
        ["loss", "lr"],
        ["small"],
        [],
    )
    assert answer["exists"]
    assert not answer["is_single"]


def test_an_unchanged_table_is_not_sent_again(served: Served):
    tag = served.get("/api/runs").headers["etag"]
    again = served.get("/api/runs", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")


def test_few_points_are_exact_and_nan_is_said(served: Served):
    curve = served.data("/api/curves?run=first&name=loss&level=step")["curves"][0]
    rows = step_rows(1, 50)
    assert curve["every"] == 1
    assert curve["columns"]["x"] == [row.step for row in rows]
    values = [row.values["loss"] for row in rows]
    assert curve["columns"]["mean"] == [None if value != value else value for value in values]
    assert curve["odd"] == {"6": "nan"}
    assert set(curve["columns"]) == {"x", "mean"}


def test_many_points_are_thinned_with_smallest_and_largest_values_kept(served: Served):
    curve = served.data("/api/curves?run=sweep%2Fwidth%3D8&name=loss&level=step&points=50")[
        "curves"
    ][0]
    columns = curve["columns"]
    assert curve["every"] >= 3000 / 50
    assert curve["rows"] == sum(columns["count"]) == 3000
    assert len(columns["x"]) <= 50
    assert max(columns["max"]) == 1.0
    assert min(columns["min"]) == pytest.approx(1 / 3000, rel=1e-8)
    assert sum(columns["nonfinite"]) == 1


def test_what_cannot_be_read_is_listed_beside_the_curves_that_can(served: Served):
    answer = served.data("/api/curves?run=first&run=gone&name=lr&name=nothing")
    assert [(curve["run"], curve["name"]) for curve in answer["curves"]] == [("first", "lr")]
    missing = {(entry["run"], entry["name"]) for entry in answer["missing"]}
    assert missing == {("first", "nothing"), ("gone", "lr"), ("gone", "nothing")}


def test_csv_has_every_value_at_full_precision(served: Served):
    reply = served.get("/api/csv?run=first&name=loss")
    rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
    steps = [row for row in rows if row["level"] == "step"]
    assert [float(row["value"]) for row in steps[:6]] == [1 / step for step in range(1, 7)]
    assert steps[6]["value"] == "nan"
    assert (steps[0]["samples"], steps[0]["run"], len(steps), len(rows)) == ("8", "first", 50, 52)
    assert "attachment" in reply.headers["content-disposition"]


def test_a_run_is_told_in_words_with_all_that_was_recorded(served: Served):
    answer = served.data("/api/run/first")
    assert answer["sentences"] == [
        "Finished after 2 epochs (50 updates) in 500 ms on cpu.",
        "Best eval_loss 0.25 in epoch 2.",
    ]
    assert answer["config"]["model"] == {"width": 32}
    assert answer["config_text"].startswith("model: {width: 32}")
    assert [event["kind"] for event in answer["events"]] == ["started", "finished"]
    assert answer["log"]["lines"][0]["text"] == "it begins"
    titles = [group["title"] for group in answer["environment"]]
    assert titles == ["Machine", "Versions", "Code", "Packages"]
    assert answer["summary"] == next(
        run for run in served.data("/api/runs")["runs"] if run["id"] == "first"
    )
    assert (answer["traceback"], answer["profile"], answer["problems"]) == (None, None, [])
    kinds = {group["name"]: (group["kind"], len(group["items"])) for group in answer["media"]}
    expected = {
        "samples": ("image", 4),
        "weights": ("histogram", 2),
        "words": ("text", 2),
        "table": ("table", 2),
    }
    assert kinds == expected


def test_pictures_and_contents_are_served(served: Served):
    media = {group["name"]: group for group in served.data("/api/run/first")["media"]}
    items = media["samples"]["items"]
    assert [(item["step"], item["position"], item["caption"]) for item in items[:2]] == [
        (10, 0, "input"),
        (10, 1, "output"),
    ]
    reply = served.get(f"/api/media/first/{items[1]['id']}")
    assert (reply.headers["content-type"], reply.body) == ("image/png", png(11))
    histograms = served.data("/api/contents/first?name=weights")
    assert [item["content"]["counts"] for item in histograms["items"]] == [[3, 10], [3, 20]]
    newest = served.data("/api/contents/first?name=weights&points=1")
    assert (newest["every"], newest["total"], newest["items"][0]["step"]) == (2, 2, 20)
    table = served.data(f"/api/media/first/{media['table']['items'][0]['id']}")
    assert table["content"]["columns"] == ["a", "b"]


def test_a_comparison_names_the_first_step_at_which_two_runs_part(served: Served):
    answer = served.data("/api/compare?run=sweep%2Fwidth%3D8&run=sweep%2Fwidth%3D16")
    assert [
        (d["part"], d["key"], d["values"]) for d in answer["differences"] if d["part"] == "config"
    ] == [("config", "model.width", [8, 16])]
    steps, epochs = answer["divergences"]
    assert (steps["at"], steps["num_same"]) == (18, 17)
    assert [change["key"] for change in steps["changes"]] == ["loss"]
    assert (epochs["at"], epochs["ends"]) == (None, [2, 2])


def test_a_sweep_has_the_parameters_that_vary_and_the_best_values(served: Served):
    answer = served.data("/api/sweep?folder=sweep")
    assert [(p["key"], p["title"], p["kind"], p["values"]) for p in answer["parameters"]] == [
        ("model.width", "width", "number", [8, 16])
    ]
    assert answer["metric"] == "eval_loss"
    assert {row["name"]: row["parameters"] for row in answer["rows"]} == {
        "width=8": {"model.width": 8},
        "width=16": {"model.width": 16},
    }
    assert all(row["metrics"]["eval_loss"] == 0.25 for row in answer["rows"])
    assert answer["folders"] == [{"folder": "", "runs": 3}, {"folder": "sweep", "runs": 2}]


def test_a_single_run_is_served_alone(runs: Path):
    with serving(runs / "sweep" / "width=8") as served:
        answer = served.data("/api/runs")
        assert ([run["id"] for run in answer["runs"]], answer["is_single"]) == (["width=8"], True)
        assert served.data("/api/run/width%3D8")["summary"]["id"] == "width=8"
        assert served.get("/api/run/width%3D16").status == 404


def test_the_page_and_plotly_come_from_this_machine(served: Served):
    plotly = served.get("/static/plotly.min.js", Accept_Encoding="gzip")
    assert (plotly.status, plotly.headers["content-encoding"]) == (200, "gzip")
    assert b"plotly.js v" in plotly.body[:200]
    assert served.get("/static/plotly.min.js", If_None_Match=plotly.headers["etag"]).status == 304
    assert "plotly" not in sys.modules


def test_looking_leaves_no_file_and_needs_no_right_to_write(tmp_path: Path):
    run = write_run(tmp_path / "runs" / "a")
    before = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").rglob("*"))}
    folders = [tmp_path / "runs", *(path for path in before if path.is_dir())]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with serving(tmp_path / "runs") as served:
            for path in (
                "runs",
                "run/a",
                "curves?run=a&name=loss",
                "sweep",
                "csv?run=a",
                "contents/a?name=weights",
            ):
                assert served.get(f"/api/{path}").status == 200
            with served.events("/api/live?run=a&cursor=0.0.0.0.0.0&name=loss") as events:
                assert next(events)[0] == "rows"
        assert {
            path: path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").rglob("*"))
        } == before
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert run.is_dir()


def test_the_server_imports_no_torch(tmp_path: Path):
    program = (
        "import sys, loopwright.dashboard.app, loopwright.dashboard.report\n"
        "from loopwright.dashboard.folder import RunsFolder\n"
        "from loopwright.dashboard.app import build_app\n"
        f"folder = RunsFolder({str(tmp_path)!r}); build_app(folder); print(folder.scan())\n"
        "print([name for name in ('torch', 'plotly', 'pandas') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.stdout.split(), ended.stderr) == (["{}", "[]"], "")


def test_json_has_only_what_javascript_can_represent(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"seed": 2**63 - 1}))
    with serving(tmp_path) as served:
        answer = served.data("/api/run/a")
        assert answer["manifest"]["seed"] == str(2**63 - 1)
        os.remove(run / "run.json")
        assert served.get("/api/run/a").status == 404
