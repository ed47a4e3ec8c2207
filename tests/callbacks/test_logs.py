"""Learning rates, gradient norms and speed in the history of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from loopwright import Callback, Schedule, Trainer
from loopwright.callbacks import (
    GradientNormLog,
    LearningRateLog,
    Throughput,
)

from ..loops import batches, build_linear
from .runs import UPDATES_PER_EPOCH, assert_same_after_crash, build_trainer, train

halving = partial(ExponentialLR, gamma=0.5)
sgd = partial(torch.optim.SGD, lr=0.1)


def test_the_rate_logged_is_the_one_the_step_was_taken_with(points):
    every_update = Schedule(halving, every="update")
    trainer = train(
        build_trainer([LearningRateLog()], optimizer=sgd, scheduler=every_update),
        points,
        num_epochs=1,
    )
    assert list(trainer.history.steps["lr"]) == [0.1 * 0.5**n for n in range(UPDATES_PER_EPOCH)]


def test_rates_that_are_tensors_are_logged_as_they_were(points):
    def build(params: Any) -> Any:
        return torch.optim.Adam(params, lr=torch.tensor(0.5), capturable=False, foreach=False)

    schedule = Schedule(halving, every="update")
    trainer = train(
        build_trainer([LearningRateLog()], optimizer=build, scheduler=schedule),
        points,
        num_epochs=1,
    )
    assert list(trainer.history.steps["lr"]) == [0.5 * 0.5**n for n in range(UPDATES_PER_EPOCH)]


class Pair(Trainer):
    """Two models, each with its own optimizer and update."""

    def configure_models(self) -> None:
        self.first, self.second = build_linear(1), build_linear(2)

    def configure_optimizers(self) -> None:
        self.slow = torch.optim.SGD(self.first.parameters(), 0.01)
        self.fast = torch.optim.SGD(self.second.parameters(), 0.1)

    def train_step(self, batch: Any) -> Any:
        inputs, targets = batch
        first = nn.functional.cross_entropy(self.first(inputs), targets)
        second = nn.functional.cross_entropy(self.second(inputs), targets)
        self.update(first, self.slow)
        self.update(second, self.fast)
        return {"loss": first.detach() + second.detach()}


def test_several_optimizers_are_logged_by_their_names(points):
    trainer = Pair(callbacks=[LearningRateLog(), GradientNormLog()], progress="silent")
    trainer.train(points, 1, batch_size=8)
    expected = {"loss", "lr/slow/0", "lr/fast/0", "grad_norm/slow", "grad_norm/fast"}
    assert set(trainer.history.steps) == expected
    assert set(trainer.history.names) == expected


def norms_by_hand(points: Any) -> list[float]:
    """Of every batch, with weights that stay as they are."""
    model = build_linear()
    norms = []
    for inputs, targets in batches(points, 8, 0):
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
    return norms


@pytest.mark.parametrize(
    "clipping",
    [{}, {"clip_norm": 0.01}, {"clip_value": 1e-3}, {"clip_norm": 9.0, "clip_value": 1e-3}],
)
def test_the_norm_logged_is_that_of_the_gradients_before_clipping(points, clipping):
    still = partial(torch.optim.SGD, lr=0.0)
    trainer = build_trainer([GradientNormLog()], build_linear(), optimizer=still, **clipping)
    train(trainer, points, num_epochs=1)
    assert list(trainer.history.steps["grad_norm"]) == norms_by_hand(points)


def test_throughput_adds_samples_and_steps_a_second_to_the_row(points):
    trainer = train(build_trainer([Throughput()]), points, num_epochs=2)
    rows = trainer.history.epochs
    for row in rows:
        assert row["samples_per_second"] / row["steps_per_second"] == pytest.approx(
            37 / UPDATES_PER_EPOCH
        )
    assert sum(37 / row["samples_per_second"] for row in rows) == pytest.approx(
        trainer.progress.seconds
    )


@pytest.mark.parametrize("after_update", [3, 5, 7])
def test_a_crashed_run_logs_the_same_rates_and_norms(tmp_path, points, after_update):
    def build() -> list[Callback]:
        return [LearningRateLog(), GradientNormLog()]

    schedule = Schedule(halving, every="update")
    assert_same_after_crash(
        tmp_path, points, build, after_update, num_epochs=2, scheduler=schedule, clip_norm=1.0
    )
