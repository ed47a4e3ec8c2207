"""Callbacks that do something every n epochs, updates or samples: when they do, and what it
costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from loopwright import Trainer
from loopwright.callbacks import Checkpoints, LearningRateLog, Periodic

from ..mistakes import raises
from .runs import assert_same_after_crash, build_trainer, train

SAMPLES = [8, 16, 24, 32, 37, 45, 53, 61, 69, 74]  # seen after each update of two epochs


class Clock(Periodic):
    """Logs and notes where the run is."""

    def __init__(self, **every: int) -> None:
        super().__init__(**every)
        self.seen: list[tuple[int, int, int]] = []

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        progress = trainer.progress
        self.seen.append((progress.epoch, progress.update, progress.sample))
        return {"clock": progress.sample}

    def metric_names(self, known: set[str]) -> set[str]:
        return {"clock"}


def moments(points: Any, num_epochs: int = 2, **every: int) -> list[tuple[int, int, int]]:
    clock = Clock(**every)
    train(build_trainer([clock]), points, num_epochs)
    return clock.seen


@pytest.mark.parametrize("n", [1, 8, 10, 20, 37, 40, 74, 75])
def test_samples_fall_to_the_first_update_at_or_past_each_multiple(points, n):
    reached = [next(s for s in SAMPLES if s >= multiple) for multiple in range(n, 75, n)]
    assert [sample for _, _, sample in moments(points, every_n_samples=n)] == sorted(set(reached))


@pytest.mark.parametrize("after_update", [3, 6])
@pytest.mark.parametrize(
    "every", [{"every_n_samples": 20}, {"every_n_updates": 3}, {"every_n_epochs": 2}]
)
def test_a_crashed_run_measures_at_the_same_moments(tmp_path, points, every, after_update):
    resumed = assert_same_after_crash(tmp_path, points, lambda: [Clock(**every)], after_update)
    assert "clock" in resumed.history


def test_what_is_measured_after_an_update_is_a_metric_of_its_step_and_the_last_is_in_the_row(
    points,
):
    history = train(build_trainer([Clock(every_n_updates=2)]), points, 2).history
    assert list(history.steps["clock"].steps) == [2, 4, 6, 8, 10]
    assert list(history.steps["clock"]) == [16, 32, 45, 61, 74]
    assert history["clock"] == [32, 74]


def test_two_clocks_are_refused():
    with raises("two-intervals", "Clock(every_n_epochs=1, every_n_samples=5)"):
        Clock(every_n_epochs=1, every_n_samples=5)


def test_by_epochs_nothing_is_called_after_updates(points):
    trainer = build_trainer([Clock(), LearningRateLog(every_n_epochs=1)])
    assert trainer.run.hooks["on_update_end"] == []
    assert len(build_trainer([Clock(every_n_updates=5)]).run.hooks["on_update_end"]) == 1


class Terminate(Clock):
    """Sends the process a signal while measuring the sixth update."""

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        if trainer.progress.update == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"clock": trainer.evaluate(trainer.datasets["test"], batch_size=8)["loss"]}


def test_a_signal_waits_until_what_is_measured_after_an_update_is_there(tmp_path, points):
    def run(kind: type[Clock], name: str) -> Trainer:
        trainer = build_trainer(
            [kind(every_n_updates=3), Checkpoints(every_updates=1)], run_dir=tmp_path / name
        )
        trainer.datasets = {"test": points}
        return train(trainer, points)

    with pytest.raises(SystemExit):
        run(Terminate, "killed")
    resumed = run(Clock, "killed")
    assert list(resumed.history.steps["clock"].steps) == [3, 6, 9, 12, 15]
