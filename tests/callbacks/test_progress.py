"""What a person sees: a live bar on a real terminal, lines without one, nothing on request."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, ConfigurationError, Trainer
from loopwright.callbacks import OfflineLoss, ProgressDisplay

from .runs import Crash, build_timed, build_trainer, train

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
EPOCH_LINE = r"epoch {}/2  loss \d\S*  eval_loss \d\S*  \d+\.\d s  [\d,]+ samples/s"


class Terminal:
    """A pseudo-terminal as standard output, and what was written to it."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.file = os.fdopen(slave, "w")
        self._chunks: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 4096):
                self._chunks.append(chunk)
        except OSError:  # how Linux says that the other end is closed
            return

    def finish(self) -> str:
        self.file.close()
        self._reader.join()
        os.close(self._master)
        return b"".join(self._chunks).decode()


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Standard output is a terminal inside; its text is in the list afterwards."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown: list[str] = []
    real = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", real.file)
        try:
            yield shown
        finally:
            patch.undo()
            shown.append(real.finish())


def test_a_terminal_gets_a_live_bar_and_a_line_for_every_epoch(points, monkeypatch):
    with terminal(monkeypatch) as shown:
        train(build_trainer(progress="auto"), points, num_epochs=2)
    text = ESCAPES.sub("", shown[0])
    assert "\x1b[" in shown[0]
    assert "━" in text
    assert "5/5" in text
    assert re.search(EPOCH_LINE.format(1), text)
    assert re.search(EPOCH_LINE.format(2), text)


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
    assert len(lines) == 2
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(EPOCH_LINE.format(number), line)


def test_within_a_long_epoch_there_is_a_line_every_interval(points, capsys, monkeypatch):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", -1.0)
    train(build_trainer([ProgressDisplay("lines", interval=0.0)], progress="lines"), points, num_epochs=1)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("Training without a run directory")
    assert [line.split("  ")[1] for line in lines[:-1]] == [f"step {n}/5" for n in range(1, 6)]
    assert lines[-1].startswith("epoch 1/1  loss ")


def test_silence_is_silent(points, capsys):
    train(build_trainer(progress="silent"), points)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_reason_of_a_stop_is_said(points, capsys):
    def stop(trainer: Trainer, metrics: Any) -> None:
        trainer.stop("enough is enough")

    train(build_trainer([stop], progress="lines"), points)
    assert capsys.readouterr().out.splitlines()[-1] == "Stopped after 5 updates: enough is enough"


def test_data_without_a_length_shows_steps_without_a_total(points, capsys, monkeypatch):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", -1.0)
    batches = iter([list(points.tensors)] * 2)
    build_trainer([ProgressDisplay("lines", interval=0.0)], progress="lines").train(batches, 1)
    assert capsys.readouterr().out.splitlines()[1].split("  ")[1] == "step 1"


def test_metrics_with_brackets_are_shown_as_they_are(points, monkeypatch):
    class Bracketed(Callback):
        def on_train_epoch_end(self, trainer: Trainer) -> None:
            trainer.log({"top[5]": 0.5, "[bold]": 0.25})

    with terminal(monkeypatch) as shown:
        train(build_trainer([Bracketed], progress="bar"), points, num_epochs=1)
    assert "top[5] 0.5  [bold] 0.25" in ESCAPES.sub("", shown[0])


def test_a_resumed_epoch_starts_the_bar_where_it_is(points, monkeypatch):
    trainer = build_trainer(progress="bar")
    data: TensorDataset = points
    with terminal(monkeypatch):
        trainer.train(data, num_updates=2, batch_size=8)
    with terminal(monkeypatch) as shown:
        trainer.train(data, 1, batch_size=8)
    assert "2/5" in ESCAPES.sub("", shown[0])


def test_an_unknown_style_is_refused():
    with pytest.raises(ConfigurationError, match="progress='loud': use one of auto, bar, lines, silent"):
        ProgressDisplay("loud")


@pytest.mark.parametrize(
    "callbacks", [[], [OfflineLoss("eval", every_n_updates=2)]], ids=["after epochs", "inside too"]
)
def test_samples_per_second_count_training_and_no_evaluation(points, capsys, monkeypatch, callbacks):
    """37 samples in 5 steps of a second each, whatever the evaluations of ten seconds a step take."""
    train(build_timed(monkeypatch, callbacks, progress="lines"), points, num_epochs=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [line.split("  ")[-1] for line in lines] == ["7 samples/s", "7 samples/s"]
