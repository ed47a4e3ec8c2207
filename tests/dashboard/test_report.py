from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from loopwright import ConfigurationError
from loopwright.cli import main
from loopwright.dashboard.report import build_report, find_entries
from loopwright.run import Run
from tests.mistakes import raises

from .serving import Served
from .small_runs import step_rows, write_run

MARKUP = "</script><script>alert(1)</script><!--"


def parts(text: str) -> dict[str, Any]:
    """The data of a report, and the modules in it."""
    data = re.search(
        r'<script type="application/json" id="loopwright-report">(.*?)</script>', text, re.DOTALL
    )[1]
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text, re.DOTALL)[1])[
        "imports"
    ]
    head = "data:text/javascript;base64,"
    modules = {
        name: base64.b64decode(address.removeprefix(head)).decode()
        for name, address in imports.items()
    }
    return {"data": json.loads(data), "modules": modules}


@pytest.fixture(scope="module")
def report(runs: Path) -> str:
    names = ("first", "sweep/width=8", "sweep/width=16")
    return build_report(find_entries([Run(runs / name) for name in names]))[0]


def test_a_report_holds_what_the_server_answers(report: str, served: Served):
    data = parts(report)["data"]
    runs = {run["id"]: run for run in served.data("/api/runs")["runs"]}
    assert {run["id"]: run for run in data["runs"]["runs"]} == runs
    answer = served.data("/api/run/first")
    for key in ("sentences", "config", "events", "media", "log", "environment"):
        assert data["run"]["first"][key] == answer[key]
    compared = served.data("/api/compare?run=first&run=sweep%2Fwidth%3D8&run=sweep%2Fwidth%3D16")
    assert data["compare"] == compared
    assert data["sweep"]["rows"]
    assert data["contents"]["first"]["weights"] == served.data(
        "/api/contents/first?name=weights&points=60"
    )


def test_curves_of_a_report_have_every_axis_and_say_when_they_are_thinned(report: str):
    data = parts(report)["data"]
    loss = next(c for c in data["curves"]["first"] if (c["name"], c["level"]) == ("loss", "step"))
    rows = step_rows(1, 50)
    assert loss["every"] == 1
    assert loss["columns"]["step"] == [row.step for row in rows]
    assert loss["columns"]["samples"] == [row.samples for row in rows]
    assert loss["columns"]["mean"][:6] == [1 / step for step in range(1, 7)]
    assert loss["odd"] == {"6": "nan"}
    assert set(loss["columns"]) == {"step", "update", "epoch", "samples", "seconds", "wall", "mean"}
    long = next(
        c for c in data["curves"]["sweep/width=8"] if (c["name"], c["level"]) == ("loss", "step")
    )
    assert long["every"] > 1
    assert sum(long["columns"]["count"]) == 3000
    assert max(long["columns"]["max"]) == 1.0
    assert data["notes"][0].startswith("4 curves have more than 2,000 points and are thinned")


def test_a_report_loads_nothing_and_its_scripts_are_known_by_their_hashes(report: str):
    outside = re.sub(r"<script.*?</script>|<style>.*?</style>", "", report, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", outside)
    assert "/static/" not in outside
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', report)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    modules = parts(report)["modules"]
    assert "loopwright/app.js" in modules
    imported = {
        name
        for text in modules.values()
        for name in re.findall(r'^import [^;"]*"([^"]+)"', text, re.M)
    }
    assert imported <= set(modules)


def test_markup_in_names_and_texts_stays_data(tmp_path: Path):
    run = write_run(tmp_path / "a", name=MARKUP)
    (run / "config.yaml").write_text(json.dumps({"note": MARKUP, "sep": "\u2028"}))
    text, _ = build_report(find_entries([Run(run)]))
    assert MARKUP not in text
    found = parts(text)
    assert found["data"]["runs"]["runs"][0]["name"] == MARKUP
    assert found["data"]["run"]["a"]["config"]["note"] == MARKUP
    assert text.lower().count("<script") == text.lower().count("</script>") == 4


def test_the_command_says_what_it_wrote_and_how_large_it_is(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a", steps=300, media=False)
    assert main(["report", "last", "--points", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 curves have more than 100 points and are thinned")
    assert re.fullmatch(r"report\.html: 1 run, \d.* MB\. Open it in a browser\.", lines[1])
    assert main(["report", "last"]) == 0, "a report may be written again"


def test_a_file_that_is_no_report_is_not_written_over(tmp_path: Path):
    write_run(tmp_path / "a", media=False)
    (tmp_path / "thesis.html").write_text("years of work")
    from loopwright.cli.ui import report_command

    class Options:
        names, root, output, points = (
            [str(tmp_path / "a")],
            "runs",
            str(tmp_path / "thesis.html"),
            None,
        )

    with raises("not-a-report", "thesis.html"):
        report_command(Options())
    assert (tmp_path / "thesis.html").read_text() == "years of work"


def test_a_run_whose_metrics_are_damaged_is_in_a_report_and_said_to_be(tmp_path: Path):
    write_run(tmp_path / "sound", media=False)
    bad = write_run(tmp_path / "bad")
    (bad / "metrics.sqlite").write_bytes(b"no database" * 500)
    text, notes = build_report(find_entries([Run(tmp_path / "sound"), Run(bad)]))
    data = parts(text)["data"]
    assert notes[0].startswith("bad is damaged: The metrics in ")
    assert (data["curves"]["bad"], data["notes"]) == ([], notes)
    assert data["run"]["bad"]["config"]["model"] == {"width": 32}
    assert data["curves"]["sound"]


def test_a_run_that_may_not_be_read_is_refused_by_name(tmp_path: Path):
    run = write_run(tmp_path / "a", media=False)
    (run / "config.yaml").unlink(missing_ok=True)
    (run / "config.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"cannot be in a report\. config\.yaml is a link"):
        find_entries([type("Run", (), {"path": run})()])
