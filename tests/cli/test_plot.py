"""`loopwright plot`: pictures and charts of the metrics of runs."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import pytest

from loopwright.cli import main
from loopwright.cli.plot import PlottedCurve, collect, draw_text
from loopwright.run import MetricsStore, RunManifest, RunView
from tests.cli.helpers import run_on_terminal


def test_svg_names_every_run(in_gallery, tmp_path):
    out = tmp_path / "curves.svg"
    assert (
        main(["plot", "finished", "twin", "--metric", "loss", "--log", "--output", str(out)]) == 0
    )
    drawn = out.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert all(f"<!-- {text} -->" in drawn for text in ("loss", "epoch"))
    assert all(re.search(rf"<!-- {text}  [\d.]+ -->", drawn) for text in ("finished", "deep/twin"))


def curves_of(run, *names, by=None, smooth=1):
    options = SimpleNamespace(metric=names, by=by, smooth=smooth, root="runs")
    return collect([run], names, options)


def test_values_are_those_of_the_epochs_unless_steps_are_asked_for(in_gallery):
    run = RunView("runs/finished")
    (epochs,) = curves_of(run, "loss")
    (steps,) = curves_of(run, "loss", by="steps")
    (updates,) = curves_of(run, "loss", by="updates")
    assert epochs.values == tuple(point.value for point in run.metrics.epochs("loss"))
    assert steps.values == tuple(point.value for point in run.metrics.steps("loss"))
    assert (epochs.places, steps.places, updates.places) == (
        (1, 2, 3),
        tuple(range(1, 13)),
        tuple(range(1, 13)),
    )


def test_text_has_a_mark_for_each_run_and_the_scale(in_gallery, capsys):
    assert main(["plot", "finished", "stopped", "--metric", "loss", "--by", "steps", "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    runs = [RunView(f"runs/{name}") for name in ("finished", "stopped")]
    values = [point.value for run in runs for point in run.metrics.steps("loss")]
    assert lines[0] == "loss"
    assert lines[1].split()[0] == f"{max(values):.4g}"
    assert lines[15].split()[0] == f"{min(values):.4g}"
    assert lines[-3].split() == ["1", "step", "12"]
    assert [line.split(":")[0].strip() for line in lines[-2:]] == ["* finished", "o stopped"]
    assert max(map(len, lines)) <= 80


def plain(curves, **options):
    lines = draw_text(curves, 60, is_plain=True, **options)
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_values_that_are_not_finite_are_counted_and_not_drawn():
    values = (1.0, float("nan"), float("inf"), 2.0)
    assert (
        plain([PlottedCurve("r", "x", "steps", (1, 2, 3, 4), values)])[-1]
        == "  * r: 2 (2 not drawn: not finite)"
    )
    left = plain([PlottedCurve("r", "x", "steps", (1, 2), (0.0, -1.0))], is_log=True)
    assert left[1:] == [
        "no value that can be drawn",
        "  * r: -1 (2 not drawn: not finite or not above 0)",
    ]


@pytest.mark.parametrize("form", [["--text"], ["-o", "x.png"]])
def test_a_metric_without_a_value_that_can_be_drawn_is_refused(tmp_path, monkeypatch, capsys, form):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "new").mkdir(parents=True)
    RunManifest.collect(name="new").write("runs/new/run.json")
    store = MetricsStore("runs/new/metrics.sqlite")
    store.add_epoch(1, 1, {"loss": float("nan")})
    store.close()
    assert main(["plot", *form]) == 2
    assert "no value of loss is finite. [nothing-to-draw]" in capsys.readouterr().err
    assert main(["plot", "--json"]) == 0


def test_without_names_the_losses_of_the_last_run_share_a_picture(in_gallery, tmp_path, capsys):
    out = tmp_path / "x.svg"
    assert main(["plot", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"loss, eval_loss of killed: {out}\n"
    drawn = out.read_text()
    assert drawn.count('id="axes_') == 1
    assert all(
        re.search(rf"<!-- {text}( .*)? -->", drawn)
        for text in ("loss", "eval_loss", "killed", "update")
    )
    assert main(["plot", "finished", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["loss", "eval_loss"]


def test_of_one_epoch_the_steps_are_drawn_and_evaluations_beside_them(in_gallery):
    run = RunView("runs/killed")
    loss, evaluated = curves_of(run, "loss", "eval_loss")
    assert (loss.along, evaluated.along) == ("updates", "updates")
    assert (loss.places, evaluated.places) == (tuple(range(1, 9)), (4,))


def test_several_curves_have_marks_in_a_pipe_and_lines_in_colours_on_a_terminal(in_gallery, capsys):
    assert main(["plot", "finished", "--text"]) == 0
    assert capsys.readouterr().out.isascii()
    code, shown = run_on_terminal(
        "plot", "finished", "--text", columns=80, group=(), folder=in_gallery
    )
    assert code == 0
    assert re.search("[\u2801-\u28ff]", shown)
    assert "\x1b[36m" in shown


def test_a_run_without_metrics_has_nothing_to_draw(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/new").mkdir(parents=True)
    RunManifest.collect(name="new").changed(state="finished").write(tmp_path / "runs/new/run.json")
    assert main(["plot"]) == 2
    assert (
        "There is nothing to draw yet: new has not logged any metrics per epoch."
        in capsys.readouterr().err
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
    "nothing to average": (
        ["finished", "--metric", "loss", "--smooth", "0"],
        "--smooth=0: use a whole number, 1 or more",
    ),
    "no steps": (
        ["finished", "--metric", "eval_loss", "--by", "steps"],
        "no metric 'eval_loss' per step",
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
