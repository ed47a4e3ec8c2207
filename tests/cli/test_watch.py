"""`watch`: real terminals, real trainings beside them, runs of every state."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.text import Text
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.cli import main
from loopwright.cli.plot import chart_lines
from loopwright.run import RunManifest
from loopwright.run.curves import MetricCurve
from tests.demo_runs import make_demo_run
from tests.forked import end_as_program
from tests.terminals import Program


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "runs"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["watch", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


# One picture


def test_without_a_terminal_one_picture_of_the_newest_run_is_printed(runs, capsys):
    make_demo_run(runs / "old", steps=500, started=1e9)
    make_demo_run(runs / "new", steps=500)
    lines = shown(capsys)
    assert lines[0].startswith("new  finished  ")
    assert re.match(r"\[=+\]  5 of 5 epochs, 100%  update 500  \d", lines[1])
    assert re.match(r"loss \d\.\d+ \(best epoch \d\.\d+ @5\) \(\d not finite\)$", lines[3])
    assert lines[-1].startswith("no room for: ")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    assert "\x1b" not in "".join(lines)


def test_metrics_are_chosen_and_an_unknown_one_is_refused(runs, capsys):
    make_demo_run(runs / "new", steps=500)
    lines = shown(capsys, "new", "--metric", "lr", "--log")
    assert [line for line in lines if re.match(r"[a-z/]+ \d", line)] == [lines[3]]
    assert lines[3].startswith("lr ")
    assert main(["watch", "new", "--metric", "los"]) == 2
    said = capsys.readouterr().err
    assert "has no metric 'los': did you mean loss?" in said


def test_a_run_without_metrics_says_so(runs, capsys):
    (runs / "new").mkdir(parents=True)
    RunManifest.collect(name="new").changed(state="finished").write(runs / "new" / "run.json")
    assert shown(capsys)[-1] == "No metrics."


@pytest.mark.parametrize("file", ["metrics.sqlite", "run.json", "config.yaml"])
def test_a_damaged_run_is_shown_as_far_as_it_can_be_read(runs, capsys, file):
    path = make_demo_run(runs / "new", steps=500)
    for log in path.glob("metrics.sqlite-*"):
        log.unlink()
    (path / file).write_bytes(b"\x00" * 5000)
    text = "".join(shown(capsys, str(path)))
    assert text.count(f"{file} ") == 1
    assert ("eval_loss" in text) == (file != "metrics.sqlite")


# Live


class Slow(Trainer):
    """A step takes long enough that someone can look."""

    def train_step(self, batch: Any) -> Any:
        time.sleep(0.01)
        return super().train_step(batch)


def train_for_ever() -> None:
    data = TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,)))
    trainer = Slow(
        nn.Linear(4, 3),
        partial(torch.optim.SGD, lr=0.1),
        nn.functional.cross_entropy,
        run_dir="live",
        progress="silent",
    )
    trainer.train(data, 100_000, eval_data=data, batch_size=8)


def started(folder: Path) -> int:
    """The process of a training in a folder, once its run is there."""
    pid = os.fork()
    if pid == 0:
        end_as_program(train_for_ever, folder)
    while not (folder / "live" / "run.json").exists():
        time.sleep(0.01)
    return pid


def test_a_run_is_watched_while_it_trains(tmp_path):
    """The screen goes on with the training, and with the training's end; leaving is quiet."""
    trainer = started(tmp_path)
    arguments = [
        "watch",
        "live",
        "--root",
        ".",
        "--interval",
        "0.05",
        "--metric",
        "loss",
        "--metric",
        "later",
    ]
    watch = Program(lambda: main(arguments), tmp_path)
    try:
        screen = watch.wait_for(r"update \d+.*\n(.*\n)*.*[⠁-⣿]")
        first = int(re.findall(r"update (\d+)", screen)[0])
        assert "live  running" in screen
        assert re.search(
            r"of 100000 epochs, 0%  update \d+  0:\d\d so far  \d.* left",
            watch.wait_for(r"update .* left"),
        )
        watch.wait_for(rf"update (?!{first}\b)\d+")
        assert "later: no value yet" in watch.screen.text
        os.kill(trainer, signal.SIGKILL)
        os.waitpid(trainer, 0)
        watch.wait_for("live  crashed")
        watch.press(b"\x03")
        assert watch.end() == 0
    finally:
        _end(trainer, watch.pid)
    assert watch.written.rindex("\x1b[?1049l") > watch.written.rindex("\x1b[?1049h")
    assert watch.written.rindex("\x1b[?25h") > watch.written.rindex("\x1b[?25l")
    after = watch.written.rpartition("\x1b[?1049l")[2]
    assert re.fullmatch(
        r"live: crashed, \d+ of 100000 epochs, 0%(, best eval_loss \S+ @\d+)?\r\n", after
    )
    assert "Traceback" not in watch.written


def _end(*processes: int) -> None:
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


# Charts


def chart(
    values: list[float],
    lows: list[float] | None = None,
    highs: list[float] | None = None,
    **options: Any,
) -> list[str]:
    number = len(values)
    ones = [1] * number
    curve = MetricCurve(
        "loss",
        "step",
        "update",
        1,
        number,
        0,
        list(range(number)),
        values,
        lows or values,
        highs or values,
        ones,
        ones,
    )
    return [line.plain for line in chart_lines(Text("loss"), [curve], 30, 8, **options)]


def test_a_line_goes_from_corner_to_corner():
    lines = chart([0.0, 1.0, 2.0, 3.0])
    assert lines[0] == "loss"
    assert lines[1].strip().startswith("3 ┤")
    assert lines[5].strip().startswith("0 ┤")
    assert re.fullmatch(r" *3 ┤ +[⠁-⣿]+", lines[1])
    assert re.fullmatch(r" *0 ┤[⠁-⣿]+", lines[5])
    assert lines[-1].split() == ["0", "update", "3"]


def test_a_spike_inside_a_column_reaches_the_top():
    flat = [1.0] * 20
    lines = chart(flat, highs=[*flat[:10], 9.0, *flat[11:]])
    assert all(re.search(r"[⠁-⣿]", line) for line in lines[1:6])
    assert len(re.findall(r"[⠁-⣿]", lines[1])) == 1


def test_values_that_are_not_finite_leave_a_gap():
    whole, broken = chart([1.0] * 9), chart([1.0] * 4 + [math.nan] + [1.0] * 4)
    assert re.search(r"┤[⠁-⣿]+$", whole[3])
    assert re.search(r"┤[⠁-⣿]+ +[⠁-⣿]+$", broken[3])
    assert len(chart([1.0, math.nan, 2.0, math.inf])) == 8
    assert chart([math.nan])[1] == "no value that can be drawn"


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors():
    lines = chart([1.0, 10.0, 100.0], is_log=True)
    assert [lines[at].split()[0] for at in (1, 3, 5)] == ["100", "10", "1"]
    assert chart([0.0, -1.0], is_log=True)[1] == "no value that can be drawn"
