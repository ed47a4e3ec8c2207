"""What a person sees: a live bar on a real terminal, lines without one, nothing on request."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from loopwright import Callback, Trainer
from loopwright.callbacks import (
    BestModel,
    Checkpoints,
    EarlyStopping,
    OfflineLoss,
    ProgressDisplay,
)

from ..terminals import ESCAPES, Screen, terminal
from .runs import Crash, build_timed, build_trainer, train

EPOCH_LINE = r"epoch {}/2  loss \d\S* +eval_loss \d\S* +\d+\.\d s +[\d,]+ samples/s(  0:\d\d left)?"


def test_a_terminal_gets_a_live_bar_and_a_line_for_every_epoch(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_timed(monkeypatch, [], progress="auto"), points, num_epochs=2)
    text = ESCAPES.sub("", shown[0])
    assert "\x1b[" in shown[0]
    assert "━" in text
    assert "5/5" in text
    heading, *epochs = re.findall(
        r"^ *(?:epoch  |[12]/2).*", Screen().feed(shown[0]).text, re.MULTILINE
    )
    assert heading.split() == ["epoch", "loss", "eval_loss", "time", "samples/s"]
    assert [epoch.split()[0] for epoch in epochs] == ["1/2", "2/2"]
    assert {len(epoch) for epoch in epochs} == {len(heading)}


def test_the_cursor_is_back_after_training_and_after_an_exception(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_trainer(progress="bar"), points, num_epochs=1)
    with terminal(monkeypatch) as failed, pytest.raises(ZeroDivisionError):
        train(build_trainer([Crash(2)], progress="bar"), points)
    for text in (shown[0], failed[0]):
        assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_without_a_terminal_there_is_one_plain_line_an_epoch(points, capsys):
    train(build_trainer(progress="auto"), points, num_epochs=2)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("Training without a run directory")
    *lines, last = lines
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(EPOCH_LINE.format(number), line)
    assert re.fullmatch(r"Best eval_loss \d\.\d+ in epoch [12]\.", last)


# Time, by a clock that goes on a second for a training step and ten for one of an evaluation


def bars(shown: list[str]) -> list[tuple[str, ...]]:
    """Every moment that was shown: the words of each bar."""
    drawn = (re.sub(r"[━╸╺]+", "", frame) for frame in Screen().feed(shown[0]).frames)
    blocks = (
        re.search(r"^epoch \d+(/\d+)? +\d.*(\n(?!loss).+)*", frame, re.MULTILINE) for frame in drawn
    )
    moments = (
        tuple(" ".join(line.split()) for line in found[0].splitlines()) for found in blocks if found
    )
    return list(dict.fromkeys(moments))


def test_the_epoch_and_the_run_have_a_bar_with_the_time_that_is_left(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_timed(monkeypatch, [], progress="bar"), points, num_epochs=3)
    moments = bars(shown)
    # no evaluation has been seen yet
    assert (
        "epoch 1/3 2/5 0:03 left",
        "run 14% 0:12 left",
    ) in moments
    # 57 s for 48 %, of which 50 were an evaluation
    assert (
        "epoch 2/3 2/5 0:03 left",
        "run 48% 1:02 left",
    ) in moments


def test_an_evaluation_has_a_bar_of_its_own(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_timed(monkeypatch, [], progress="bar"), points, num_epochs=2)
    moments = bars(shown)
    assert ("epoch 2/2 5/5 0:00 left", "eval 2/5 0:30 left", "run 99%") in moments
    assert ("epoch 1/2 5/5 0:00 left", "eval 5/5 0:00 left", "run 50% 0:05 left") in moments
    assert ("epoch 2/2 0/5", "run 50% 0:55 left") in moments


def test_every_evaluation_set_is_named(points, monkeypatch):
    other = OfflineLoss("other", every_n_updates=3, datasets={"other": points}, batch_size=20)
    with terminal(monkeypatch) as shown:
        train(build_timed(monkeypatch, [other], progress="bar"), points, num_epochs=1)
    words = {line for moment in bars(shown) for line in moment}
    assert "other 1/2 0:10 left" in words
    assert "eval 3/5 0:20 left" in words


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"num_updates": 8}, "run 88% 0:08 left"),
        ({"num_samples": 61}, "run 87% 0:09 left"),
        ({"max_time": 8}, "run 88% 0:01 left"),
    ],
)
def test_the_time_that_is_left_goes_by_the_limit_of_the_call(points, monkeypatch, limits, expected):
    with terminal(monkeypatch) as shown:
        build_timed(monkeypatch, [], progress="bar").train(
            points, eval_data=points, batch_size=8, **limits
        )
    assert ("epoch 2 2/5 0:03 left", expected) in bars(shown)


class Unsized(IterableDataset[Any]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Any:
        return (self.data[index] for index in range(len(self.data)))


def test_of_data_without_a_length_later_epochs_are_taken_to_be_as_long_as_the_first(
    points, monkeypatch
):
    with terminal(monkeypatch) as shown:
        build_timed(monkeypatch, [], progress="bar").train(Unsized(points), 3, batch_size=8)
    moments = bars(shown)
    assert ("epoch 1/3 2", "run 0%") in moments
    assert ("epoch 2/3 2", "run 33% 0:08 left") in moments


def test_a_resumed_run_goes_by_its_own_speed(points, monkeypatch, tmp_path):
    def run(seconds: float, *callbacks: Callback) -> None:
        trainer = build_timed(
            monkeypatch,
            [*callbacks, Checkpoints(every_updates=1)],
            progress="bar",
            run_dir=tmp_path / "run",
        )
        trainer.step_seconds = seconds
        trainer.train(points, 3, batch_size=8)

    with terminal(monkeypatch), pytest.raises(ZeroDivisionError):
        run(100.0, Crash(7))
    with terminal(monkeypatch) as shown:
        run(1.0)
    text = Screen(200).feed(shown[0]).text
    assert "epoch 2, update 7" in text
    assert "Finished: 3 epochs, 15 updates in 0:08 since it was resumed." in text
    # 42 samples at 8 a second
    assert ("epoch 2/3 4/5 0:01 left", "run 62% 0:05 left") in bars(shown)


def test_lines_say_the_same_inside_epochs_and_evaluations(points, capsys, monkeypatch):
    display = ProgressDisplay("lines", interval=20.0)
    train(build_timed(monkeypatch, [display], progress="lines"), points, num_epochs=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "epoch 1/2  eval batch 2/5  0:30 left  run 0:05 left"
    assert "epoch 2/2  eval batch 4/5  0:10 left" in lines
    assert [line.rpartition("samples/s")[2] for line in lines if "samples/s" in line] == [
        "  0:55 left",
        "",
    ]


# Columns


class ManyMetrics(Callback):
    def __init__(self, *names: str) -> None:
        self.values = dict.fromkeys(names, 0.25)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        trainer.log(self.values)


LONG = (
    "eval_multiclass_accuracy_top5",
    "eval_mean_average_precision",
    "grad_norm",
    "learning_rate",
    "peak_memory_mb",
)


def table(text: str) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if line and not line.startswith(("Training", "Best", "No space"))
    ]


def test_a_table_of_many_metrics_fits_the_terminal(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_trainer([ManyMetrics(*LONG)], progress="bar"), points, num_epochs=2)
    text = Screen().feed(shown[0]).text
    assert table(text)[0] == (
        "epoch       loss  eval_multiclass_accuracy_top5  eval_loss     time  samples/s"
    )
    assert "No space for eval_mean_average_precision, grad_norm, learning_rate" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_columns_of_the_table_are_chosen(points, monkeypatch, capsys):
    columns = ["eval_loss", "grad_norm", "time"]
    with terminal(monkeypatch) as shown:
        train(
            build_trainer([ManyMetrics(*LONG), ProgressDisplay("bar", columns=columns)]),
            points,
            num_epochs=1,
        )
    heading, row = table(Screen().feed(shown[0]).text)
    assert heading.split() == ["epoch", "eval_loss", "grad_norm", "time"]
    assert re.fullmatch(r"  1/1  +\d\.\d+  +0\.2500  +\d\.\d s", row)
    train(
        build_trainer([ManyMetrics(*LONG), ProgressDisplay("lines", columns=columns)]),
        points,
        num_epochs=1,
    )
    assert re.fullmatch(
        r"epoch 1/1  eval_loss \d\.\d+ +grad_norm 0\.2500  \d\.\d s\n", capsys.readouterr().out
    )


# The last lines


def test_a_run_ends_with_its_best_epoch_its_best_model_and_what_to_type(
    points, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    trainer = train(build_trainer(progress="lines", run_dir="runs/my first"), points, num_epochs=2)
    first, *_, finished, model, look = capsys.readouterr().out.splitlines()
    assert first == "New run in runs/my first: cpu, 195 parameters."
    best = min(trainer.history["eval_loss"])
    epoch = trainer.history["eval_loss"].index(best) + 1
    assert re.fullmatch(
        rf"Finished: 2 epochs, 10 updates in 0:\d\d\. Best eval_loss {best:#.4g} in epoch {epoch}\.",
        finished,
    )
    assert model == f"Best model: runs/my first/kept/update-{5 * epoch:08d}"
    assert Path(model.removeprefix("Best model: ")).is_dir()
    assert look == "To inspect it: loopwright show 'runs/my first', or loopwright ui runs"


def test_the_best_epoch_is_by_the_metric_of_the_best_model_where_another_callback_watches_the_loss(
    points, capsys, monkeypatch, tmp_path
):
    numbers = count()
    # lower in every batch
    metrics = {"accuracy": lambda outputs, targets: torch.tensor(1 / (1 + next(numbers)))}
    monkeypatch.chdir(tmp_path)
    callbacks = [BestModel("eval_accuracy"), EarlyStopping("eval_loss", patience=9)]
    trainer = train(
        build_trainer(callbacks, metrics=metrics, progress="lines", run_dir="runs/two"),
        points,
        num_epochs=2,
    )
    *_, finished, model, _ = capsys.readouterr().out.splitlines()
    first, second = trainer.history["eval_accuracy"]
    assert first > second
    assert finished.endswith(f"Best eval_accuracy {first:#.4g} in epoch 1.")
    assert model == "Best model: runs/two/kept/update-00000005"
