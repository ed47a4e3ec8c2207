"""`loopwright plot`: pictures and charts of the metrics of runs."""

from __future__ import annotations

import sys

import pytest

from loopwright.cli import main
from loopwright.cli.plot import Curve, collect, draw_text
from loopwright.run import RunView


def test_picture_of_several_runs_is_a_png(in_gallery, tmp_path, capsys):
    out = tmp_path / "curves.png"
    assert main(["plot", "finished", "stopped", "--metric", "loss", "--metric", "eval_loss", "--output", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"loss, eval_loss of 2 runs drawn to {out}.\n"


def test_svg_names_every_run(in_gallery, tmp_path):
    out = tmp_path / "curves.svg"
    assert main(["plot", "finished", "twin", "--metric", "loss", "--log", "--output", str(out)]) == 0
    drawn = out.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert all(f"<!-- {text} -->" in drawn for text in ("finished", "deep/twin", "loss", "epochs"))


def test_picture_is_called_as_its_metric_where_nobody_names_it(gallery, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(gallery / "runs/finished"), "--metric", "eval_loss"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["eval_loss.png"]


def test_values_are_those_of_the_epochs_unless_steps_are_asked_for(in_gallery):
    run = RunView("runs/finished")
    (epochs,) = collect([run], "loss", None, 1, "runs")
    (steps,) = collect([run], "loss", "steps", 1, "runs")
    (updates,) = collect([run], "loss", "updates", 1, "runs")
    assert epochs.values == tuple(point.value for point in run.metrics.epochs("loss"))
    assert steps.values == tuple(point.value for point in run.metrics.steps("loss"))
    assert (epochs.places, steps.places, updates.places) == ((1, 2, 3), tuple(range(1, 13)), tuple(range(1, 13)))


def test_a_metric_of_epochs_can_be_drawn_over_updates(in_gallery):
    (curve,) = collect([RunView("runs/finished")], "eval_loss", "updates", 1, "runs")
    assert curve.places == (4, 8, 12)


def test_smoothing_averages_the_last_values(in_gallery):
    run = RunView("runs/finished")
    (plain,), (smooth,) = (collect([run], "loss", "steps", window, "runs") for window in (1, 3))
    assert smooth.values[0] == plain.values[0]
    assert smooth.values[5] == pytest.approx(sum(plain.values[3:6]) / 3)


def test_text_has_a_mark_for_each_run_and_the_scale(in_gallery, capsys):
    assert main(["plot", "finished", "stopped", "--metric", "loss", "--by", "steps", "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    runs = [RunView(f"runs/{name}") for name in ("finished", "stopped")]
    values = [point.value for run in runs for point in run.metrics.steps("loss")]
    assert lines[0] == "loss over steps"
    assert lines[1].split()[0] == f"{max(values):.4g}"
    assert lines[15].split()[0] == f"{min(values):.4g}"
    assert lines[-3].split() == ["1", "12"]
    assert [line.split(":")[0].strip() for line in lines[-2:]] == ["* finished", "o stopped"]
    assert max(map(len, lines)) <= 80


def test_a_straight_line_is_drawn_straight():
    lines = draw_text("x", [Curve("r", "steps", (0, 1, 2), (0.0, 1.0, 2.0))], width=40)
    marks = [(row, line.index("*")) for row, line in enumerate(lines[1:16]) if "*" in line]
    (top, right), (middle, centre), (bottom, left) = marks
    assert (top, middle, bottom) == (0, 7, 14)
    assert right - centre == pytest.approx(centre - left, abs=1)


def test_values_that_are_not_finite_are_counted_and_not_drawn():
    values = (1.0, float("nan"), float("inf"), 2.0)
    lines = draw_text("x", [Curve("r", "steps", (1, 2, 3, 4), values)], width=60)
    assert lines[-1] == "  * r: 2 (2 not drawn: not finite, or not above 0)"


def test_constant_and_single_values_can_be_drawn():
    for values in ((3.0,), (3.0, 3.0)):
        lines = draw_text("x", [Curve("r", "steps", tuple(range(len(values))), values)], width=60)
        assert sum(line.count("*") for line in lines[1:16]) == len(values)


MISTAKES = {
    "an unknown metric": (
        ["finished", "--metric", "los"],
        "finished has no metric 'los'; it has: eval_loss, loss. D",
    ),
    "no such place": (["finished", "--metric", "loss", "--output", "x.gif"], "a picture is one of .png, .svg, .pdf"),
    "nothing to average": (["finished", "--metric", "loss", "--smooth", "0"], "average over 1 value or more"),
    "no steps": (["finished", "--metric", "eval_loss", "--by", "steps"], "no metric 'eval_loss' of steps"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_be_drawn_is_refused(in_gallery, capsys, arguments, message):
    assert main(["plot", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_the_pip_command_is_named_and_text_is_drawn(in_gallery, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "finished", "--metric", "loss", "--output", str(tmp_path / "x.png")]) == 2
    assert "pip install 'loopwright[plots]'" in capsys.readouterr().err
    assert main(["plot", "finished", "--metric", "loss", "--text"]) == 0
