"""Rows of steps know their place in the run, whatever happens to it, and are read as the dicts they
once were."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Callback, DistributedRuntime, StepResult, Trainer
from loopwright.callbacks import Checkpoints, Rewind
from loopwright.metrics.meter import Meter
from loopwright.metrics.progress import Progress
from loopwright.metrics.rows import StepRow, StepValues, build_rows
from loopwright.run import MetricsStore
from tests.callbacks.rewinding import build, good_batches, poisoned
from tests.callbacks.runs import Clock, Timed
from tests.distributed.ranks import run_ranks
from tests.forked import call_forked
from tests.loops import build_linear, windows
from tests.runs import steps_of

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


class Rows(Callback):
    """Collects rows; with `file`, also in a file that outlives the process."""

    def __init__(self, file: Path | None = None) -> None:
        self.rows: list[StepRow] = []
        self.file = file

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        self.rows += rows
        if self.file is not None:
            with self.file.open("a") as lines:
                lines.writelines(json.dumps([*place_of(row), dict(row)]) + "\n" for row in rows)


def place_of(row: StepRow) -> tuple[int, int, int, int, float]:
    return (row.update, row.step, row.epoch, row.samples, row.seconds)


def rows_by_hand(
    data: TensorDataset, *, epochs: int, accumulate: int = 1, batch_size: int = 8
) -> list[StepRow]:
    """The rows of a hand-written loop that counts, in which a step takes a second."""
    model = build_linear()
    optimizer = sgd(model.parameters())
    update = step = samples = 0
    rows: list[StepRow] = []
    for epoch in range(epochs):
        for window in windows(data, batch_size, epoch, accumulate):
            update += 1
            total, ended = sum(len(y) for _, y in window), float(step + len(window))
            for x, y in window:
                loss = cross_entropy(model(x), y)
                (loss / (total / len(y))).backward()
                step, samples = step + 1, samples + len(y)
                rows.append(StepRow(update, step, epoch, samples, ended, {"loss": loss.item()}))
            optimizer.step()
            optimizer.zero_grad()
    return rows


def build_timed(monkeypatch: pytest.MonkeyPatch, *callbacks: Callback, **options: Any) -> Timed:
    trainer = Timed(
        build_linear(), sgd, cross_entropy, callbacks=callbacks, progress="silent", **options
    )
    trainer.clock = Clock(monkeypatch)
    return trainer


# A row


@pytest.fixture
def row() -> StepRow:
    return StepRow(2, 5, 1, 40, 1.5, {"loss": 0.5, "lr": 0.1})


def test_a_row_has_a_place_and_metrics(row):
    assert place_of(row) == (2, 5, 1, 40, 1.5)
    assert row.values == {"loss": 0.5, "lr": 0.1}
    assert repr(row) == (
        "StepRow(update=2, step=5, epoch=1, samples=40, seconds=1.5, values={'loss': 0.5, 'lr': "
        "0.1})"
    )


def test_the_seconds_of_an_update_are_those_at_its_end():
    places = [(1, 1, 0, 8, 0.0), (1, 2, 0, 16, 0.0), (2, 3, 0, 24, 5.0), (3, 4, 0, 32, 7.0)]
    rows = build_rows(places, [StepValues()] * 4, 9.0)
    assert [row.seconds for row in rows] == [5.0, 5.0, 7.0, 9.0]
    assert build_rows([], [], 9.0) == []


def test_a_meter_takes_the_counters_when_a_step_is_added():
    meter, progress = Meter(), Progress(epoch=3, step=20, update=10, sample=160, seconds=2.0)
    progress.next_step(8)
    meter.add(StepResult(torch.tensor(0.5), 8), progress)
    meter.add_to_last({"lr": 0.1})
    progress.next_update()
    progress.next_epoch()
    progress.seconds = 3.0
    assert meter.flush_rows(progress) == [StepRow(11, 21, 3, 168, 3.0, {"loss": 0.5, "lr": 0.1})]
    assert meter.flush_rows(progress) == []


# In a run


@pytest.mark.parametrize("log_points", [(0.0, 512), (1e9, 512), (1e9, 3), (7.0, 5)], ids=str)
@pytest.mark.parametrize("accumulate", [1, 2, 3, 9])
def test_rows_are_those_of_a_hand_written_loop_that_counts(
    points, monkeypatch, accumulate, log_points
):
    """With short last windows, and evaluations, which take ten times as long, after epochs and
    inside of windows."""

    class Look(Callback):
        def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
            if trainer.progress.step % 4 == 0:
                trainer.evaluate(points, batch_size=20)

    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", log_points[0])
    monkeypatch.setattr("loopwright.training.steps.FLUSH_STEPS", log_points[1])
    rows = Rows()
    trainer = build_timed(monkeypatch, rows, Look(), accumulate=accumulate)
    history = trainer.train(points, 3, points, batch_size=8)
    expected = rows_by_hand(points, epochs=3, accumulate=accumulate)
    assert rows.rows == expected
    assert trainer.clock.now > 15 + 3 * 50
    assert list(history.steps["loss"].steps) == [row.step for row in expected]
    assert list(history.steps["loss"]) == [row["loss"] for row in expected]


@pytest.mark.parametrize(("kill_at", "num_repeated"), [(3, 2), (6, 1), (8, 0), (13, 2)])
def test_rows_go_on_exactly_after_sigkill(points, tmp_path, monkeypatch, kill_at, num_repeated):
    """Killed inside a window, in each epoch; steps that are taken again, since the last checkpoint,
    give equal rows."""
    file = tmp_path / "rows.jsonl"
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", 0.0)

    class Kill(Callback):
        def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
            if trainer.progress.step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def train(*callbacks: Callback) -> None:
        saving = Checkpoints(every_updates=2, asynchronous=False)
        trainer = build_timed(
            monkeypatch, Rows(file), saving, *callbacks, accumulate=2, run_dir=tmp_path / "run"
        )
        trainer.train(points, 3, points, batch_size=8)

    assert call_forked(partial(train, Kill()), tmp_path).code == -signal.SIGKILL
    train()
    written = [json.loads(line) for line in file.read_text().splitlines()]
    rows = {place[1]: StepRow(*place, values) for *place, values in written}
    expected = rows_by_hand(points, epochs=3, accumulate=2)
    assert list(rows.values()) == expected
    assert all(StepRow(*place, values) == rows[place[1]] for *place, values in written)
    assert len(written) == len(expected) + num_repeated
    store = MetricsStore(tmp_path / "run" / "metrics.sqlite")
    assert steps_of(store, "loss") == [
        (row.update, row.step, "loss", row["loss"]) for row in expected
    ]
    store.close()


@pytest.mark.parametrize("flush_seconds", [0.0, 1e9])
def test_after_a_rewind_rows_count_as_if_the_bad_batch_had_not_been(monkeypatch, flush_seconds):
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", flush_seconds)
    rewound, clean = Rows(), Rows()
    build([Rewind(max_rewinds=4), rewound]).train(poisoned(good_batches(), 3, 6), num_epochs=2)
    build([clean]).train(good_batches(), num_epochs=2)
    last = {row.step: row for row in rewound.rows}
    assert [replace(row, seconds=0.0) for row in last.values()] == [
        replace(row, seconds=0.0) for row in clean.rows
    ]
    seconds = [row.seconds for row in last.values()]
    assert seconds == sorted(seconds)


def collect_rows(rank: int, points: TensorDataset) -> list[StepRow]:
    rows = Rows()
    trainer = Trainer(
        build_linear(),
        sgd,
        cross_entropy,
        callbacks=[rows],
        accumulate=2,
        progress="silent",
        runtime=DistributedRuntime(),
    )
    trainer.train(points, 2, points, batch_size=8)
    return rows.rows


def test_rows_of_two_processes_are_those_of_one(points):
    """Of 37 samples, one process has 19 and the other 18; the samples of a row are those of
    both."""
    expected = rows_by_hand(points, epochs=2, accumulate=2)
    for rows in run_ranks(collect_rows, 2, points):
        assert [place_of(row)[:4] for row in rows] == [place_of(row)[:4] for row in expected]
        losses, single = [row["loss"] for row in rows], [row["loss"] for row in expected]
        assert losses == pytest.approx(single, rel=1e-5)
