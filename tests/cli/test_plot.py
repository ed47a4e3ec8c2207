"""`loopwright plot`: pictures and charts of the metrics of runs."""

from __future__ import annotations

import re
import sys

import pytest

from loopwright.cli import main
from loopwright.run import MetricsStore, Run, RunManifest
from tests.cli.helpers import run_on_terminal


def test_svg_names_every_run(in_gallery, tmp_path):
    out = tmp_path / "curves.svg"
    assert (
        main(["plot", "finished", "twin", "--metric", "loss", "--log", "--output", str(out)]) == 0
    )
    drawn = out.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert all(f"<!-- {text} -->" in drawn for text in ("loss", "update"))
    assert all(
        re.search(rf"<!-- {text} loss  [\d.]+ -->", drawn) for text in ("finished", "deep/twin")
    )


def test_text_has_a_chart_for_each_run_with_its_scale(in_gallery, capsys):
    assert main(["plot", "finished", "stopped", "--metric", "loss", "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    values = [point.value for point in Run("runs/finished").metrics.steps("loss")]
    assert lines[0].startswith("finished loss ")
    assert lines[1].split()[0] == f"{max(values):.4g}"
    assert lines[15].split()[0] == f"{min(values):.4g}"
    assert lines[17].split() == ["1", "update", "12"]
    assert lines[18].startswith("stopped loss ")
    assert max(map(len, lines)) <= 80
    assert re.search("[\u2801-\u28ff]", lines[4])


@pytest.mark.parametrize("form", [["--text"], ["--log", "-o", "x.png"]])
def test_a_metric_without_a_value_that_can_be_drawn_is_said_or_an_empty_panel(
    tmp_path, monkeypatch, capsys, form
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "new").mkdir(parents=True)
    RunManifest.collect(name="new").write("runs/new/run.json")
    store = MetricsStore("runs/new/metrics.sqlite")
    store.add_epoch(1, 1, {"loss": float("nan")})
    store.close()
    assert main(["plot", *form]) == 0
    said = "no value that can be drawn" if form == ["--text"] else "loss of new: x.png"
    assert said in capsys.readouterr().out


def test_without_names_the_losses_of_the_last_run_share_a_picture(in_gallery, tmp_path, capsys):
    out = tmp_path / "x.svg"
    assert main(["plot", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"loss, eval_loss of killed: {out}\n"
    drawn = out.read_text()
    assert drawn.count('id="axes_') == 1
    assert all(
        re.search(rf"<!-- {text}( .*)? -->", drawn)
        for text in ("killed loss", "killed eval_loss", "update")
    )


def test_several_curves_share_a_chart_in_colours(in_gallery, capsys):
    code, shown = run_on_terminal(
        "plot", "finished", "--text", columns=80, group=(), folder=in_gallery
    )
    assert code == 0
    assert "\x1b[1;36m" in shown
    assert "\x1b[1;33m" in shown
    assert shown.count("update") == 1


def test_a_run_without_metrics_has_nothing_to_draw(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/new").mkdir(parents=True)
    RunManifest.collect(name="new").changed(state="finished").write(tmp_path / "runs/new/run.json")
    assert main(["plot"]) == 2
    assert (
        "There is nothing to draw yet: new has not logged any metrics." in capsys.readouterr().err
    )


MISTAKES = {
    "an unknown metric": (
        ["finished", "--metric", "los"],
        "finished has no metric 'los': did you mean loss? [unknown-metric]",
    ),
    "no such place": (
        ["finished", "--metric", "loss", "--output", "x.gif"],
        "the name must end in .png or .svg or .pdf. [output-suffix]",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_be_drawn_is_refused(in_gallery, capsys, arguments, message):
    assert main(["plot", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_the_pip_command_is_named_and_text_is_drawn(
    in_gallery, tmp_path, monkeypatch, capsys
):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "finished", "--metric", "loss", "--output", str(tmp_path / "x.png")]) == 2
    assert "pip install 'loopwright[plots]'" in capsys.readouterr().err
    assert main(["plot", "finished", "--metric", "loss", "--text"]) == 0
