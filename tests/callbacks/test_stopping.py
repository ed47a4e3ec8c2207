"""Early stopping: when it stops, what counts as better, and what it remembers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loopwright import Callback, Trainer
from loopwright.callbacks import EarlyStopping, FixedEarlyStopping, OfflineLoss

from .runs import Logged, assert_same_after_crash, build_trainer, train


def epochs_run(points: Any, values: list[float], **options: Any) -> tuple[int, Trainer]:
    stopping = EarlyStopping(**({"metric": "score", "patience": 2} | options))
    trainer = train(build_trainer([Logged(score=values), stopping]), points, num_epochs=len(values))
    return len(trainer.history), trainer


def test_training_stops_after_so_many_epochs_without_improvement(points):
    assert epochs_run(points, [0.1, 0.5, 0.4, 0.3, 0.9])[0] == 4


def test_nan_is_never_an_improvement_not_even_the_first_value(points):
    epochs, trainer = epochs_run(points, [math.nan, math.nan, 0.5])
    assert epochs == 2
    assert trainer.stop_reason == "score has not improved for 2 epochs (now nan, never a number)"


def test_the_reason_names_the_metric_its_best_value_and_epoch(points):
    _, trainer = epochs_run(points, [0.25, 0.75, 0.5, 0.5])
    assert (
        trainer.stop_reason == "score has not improved for 2 epochs (now 0.5, best 0.75 in epoch 2)"
    )


def test_a_second_call_has_its_patience_back(points):
    stopping = EarlyStopping("score", patience=1)
    trainer = build_trainer([Logged(score=[0.5, 0.4, 0.3, 0.2]), stopping])
    train(trainer, points, num_epochs=4)
    assert len(trainer.history) == 2
    stopping.patience = 2
    train(trainer, points, num_epochs=4)
    assert len(trainer.history) == 4


@pytest.mark.parametrize("after_update", [4, 5, 12, 19])
def test_a_crashed_run_stops_in_the_same_epoch_with_the_same_state(tmp_path, points, after_update):
    def build() -> list[Callback]:
        return [Logged(score=[0.5, 0.6, 0.55, 0.5, 0.4, 0.3]), EarlyStopping("score", patience=2)]

    resumed = assert_same_after_crash(tmp_path, points, build, after_update, num_epochs=6)
    assert len(resumed.history) == 4


def test_a_run_that_crashed_after_it_was_stopped_stays_stopped(tmp_path, points):
    class CrashAtTheEnd(Callback):
        crashes = True

        def on_train_end(self, trainer: Trainer) -> None:
            if self.crashes:
                raise ZeroDivisionError

    def run(name: str, crashes: bool) -> Trainer:
        CrashAtTheEnd.crashes = crashes
        callbacks = [
            Logged(score=[0.5, 0.4, 0.3]),
            EarlyStopping("score", patience=1),
            CrashAtTheEnd,
        ]
        return train(build_trainer(callbacks, run_dir=tmp_path / name), points, num_epochs=3)

    with pytest.raises(ZeroDivisionError):
        run("run", crashes=True)
    resumed = run("run", crashes=False)
    assert len(resumed.history) == 2
    assert resumed.stop_reason is not None
    assert "has not improved for 1 epoch " in resumed.stop_reason


# Other intervals, and points that are fixed before


def test_patience_can_be_counted_in_updates(points):
    loss = OfflineLoss("train", every_n_updates=2)
    stopping = EarlyStopping("train_loss", patience=2, mode="max", every_n_updates=2)
    trainer = build_trainer([stopping, loss])
    trainer.train(points, 10, batch_size=8)
    losses = list(trainer.history.steps["train_loss"])
    assert trainer.progress.update == 2 * len(losses)
    assert losses[-3] == max(losses)
    assert "train_loss has not improved for 4 updates" in trainer.stop_reason
    assert f"in update {stopping.best_at}" in trainer.stop_reason


@pytest.mark.parametrize(
    ("point", "update"),
    [({"stop_at_epoch": 2}, 10), ({"stop_at_update": 7}, 7), ({"stop_at_sample": 40}, 6)],
)
def test_a_run_stops_at_a_fixed_point(points, point, update):
    trainer = build_trainer([FixedEarlyStopping(**point)])
    trainer.train(points, 4, batch_size=8)
    assert trainer.progress.update == update
    assert (
        trainer.stop_reason
        == "reached the limit set by FixedEarlyStopping: {0[0]} {0[1]}".format(
            (next(iter(point)).removeprefix("stop_at_"), next(iter(point.values())))
        )
    )


def test_less_than_min_delta_is_no_improvement(points):
    assert epochs_run(points, [0.5, 0.55, 0.59, 0.9], min_delta=0.1)[0] == 3
    assert epochs_run(points, [0.5, 0.65, 0.8, 0.95], min_delta=0.1)[0] == 4
