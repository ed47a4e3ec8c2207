"""A metric that nobody will measure is refused before the first step, with the names that exist."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy

from loopwright import ConfigurationError, StepResult, Trainer
from loopwright.callbacks import EMA, BestModel, EarlyStopping, GradientNormLog, TorchMetrics

from ..loops import build_net
from .runs import build_trainer, train


@pytest.mark.parametrize(
    "metric",
    ["eval_accuracy", "eval_slow_accuracy", "eval_fast_loss", "grad_norm", "loss"],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_metrics_of_other_callbacks_can_be_watched_in_any_order_of_the_callbacks(
    points, metric, is_reversed
):
    callbacks = [
        TorchMetrics({"accuracy": MulticlassAccuracy(3)}),
        EMA(0.9, name="slow"),
        EMA(0.5, name="fast"),
        GradientNormLog(),
        EarlyStopping(metric, mode="min"),
    ]
    trainer = build_trainer(reversed(callbacks) if is_reversed else callbacks)
    assert metric in train(trainer, points, num_epochs=1).history


class ScoredOnly(Trainer):
    """An evaluation without a loss."""

    def eval_step(self, batch: Any) -> Any:
        return StepResult(metrics={"score": 1.0})


def test_the_best_model_that_nobody_asked_for_demands_no_metric(tmp_path, points):
    trainer = ScoredOnly(
        build_net(),
        torch.optim.Adam,
        torch.nn.functional.cross_entropy,
        run_dir=tmp_path,
        progress="silent",
    )
    assert train(trainer, points, num_epochs=1).history["eval_score"] == [1.0]


def test_a_best_model_that_was_asked_for_demands_its_metric(tmp_path, points):
    trainer = ScoredOnly(
        build_net(),
        torch.optim.Adam,
        torch.nn.functional.cross_entropy,
        run_dir=tmp_path,
        progress="silent",
        callbacks=[BestModel()],
    )
    with pytest.raises(ConfigurationError, match="BestModel watches 'eval_loss'"):
        train(trainer, points)


def test_a_second_call_without_evaluation_keeps_no_best_model_and_trains(tmp_path, points):
    trainer = build_trainer(run_dir=tmp_path)
    train(trainer, points, num_epochs=1)
    trainer.train(points, 1, batch_size=8)
    assert len(trainer.history) == 2


def test_averages_of_averages_are_not_among_the_metrics(points):
    with pytest.raises(ConfigurationError) as caught:
        train(build_trainer([EMA(name="a"), EMA(name="b"), EarlyStopping("nothing")]), points)
    assert "it will measure: eval_a_loss, eval_b_loss, eval_loss, loss." in str(caught.value)
