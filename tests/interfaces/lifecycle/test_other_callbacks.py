"""Callbacks that limit, evaluate, average, move and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    DEFAULT_CALLBACKS,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    ModelEmaCallback,
    PrintMetricsCallback,
    ProgressBarCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
)
from loopwright.trackers import Track

from ...loops import assert_same_model, build_net, evaluate_by_hand
from ...terminals import Screen, terminal
from ...trackers.runs import Recorded
from .runs import build_trainer, each, head, train


class CountingEval(TrainerCallback):
    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_eval_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.counts.append(0)

    def on_eval_step_end(
        self, trainer: Trainer, batch: Any, batch_output: Any, **kwargs: Any
    ) -> None:
        self.counts[-1] += 1


def test_batches_are_limited_in_training_and_evaluation(points: TensorDataset) -> None:
    counting = CountingEval()
    trainer = build_trainer(callbacks=[LimitBatchesCallback(2), counting])
    train(trainer, points, 3, eval_dataset=points, gradient_accumulation_steps=2)
    assert trainer._core.progress.step == 6
    assert trainer.run_config.num_update_steps_per_epoch == 1
    assert counting.counts == [2, 2, 2]


def test_step_based_evaluation_changes_nothing_of_the_training(points: TensorDataset) -> None:
    modes: list[bool] = []
    counting = CountingEval()
    check = each("on_train_step_start", lambda trainer: modes.append(trainer.model.training))
    trainer = build_trainer(callbacks=[StepBasedEvaluationCallback(3), counting, check])
    train(trainer, points, 2, eval_dataset=points)
    assert_same_model(trainer.model, train(build_trainer(), points, 2, eval_dataset=points).model)
    assert modes == [True] * 10
    assert len(list(trainer.run_history.get_metric_values("intermediate_eval_loss"))) == 3
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 2
    assert counting.counts == [5] * 5


@pytest.mark.parametrize(
    ("intermediate_only", "counts"), [(True, [2, 5, 2, 2, 5]), (False, [2] * 5)]
)
def test_evaluations_are_limited(
    points: TensorDataset, intermediate_only: bool, counts: list[int]
) -> None:
    counting = CountingEval()
    limit = LimitEvalStepsCallback(2, limit_intermediate_only=intermediate_only)
    trainer = build_trainer(callbacks=[limit, StepBasedEvaluationCallback(3), counting])
    train(trainer, points, 2, eval_dataset=points)
    assert counting.counts == counts


def average_by_hand(points: TensorDataset, decay: float, accumulate: int) -> nn.Module:
    """The average that the weights after each update give, batch norm statistics from the end."""
    average = build_net()
    count = 0

    class Following(Trainer):
        def optimizer_step(self) -> None:
            nonlocal count
            super().optimizer_step()
            count += 1
            with torch.no_grad():
                for own, other in zip(average.parameters(), self.model.parameters(), strict=True):
                    own.lerp_(other, 1 - decay)

    trainer = train(
        build_trainer(kind=Following), points, 2, gradient_accumulation_steps=accumulate
    )
    assert count == 2 * -(-5 // accumulate)
    for own, other in zip(average.buffers(), trainer.model.buffers(), strict=True):
        own.copy_(other)
    return average


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_follows_updates_and_is_evaluated_under_its_prefix(
    points: TensorDataset, tmp_path: Path, accumulate: int
) -> None:
    ema = ModelEmaCallback(decay=0.8, save_path=tmp_path / "ema")
    evaluations = CountingEval()
    trainer = build_trainer(callbacks=[ema, evaluations])
    train(trainer, points, 2, eval_dataset=points, gradient_accumulation_steps=accumulate)
    average = average_by_hand(points, 0.8, accumulate)
    assert ema.ema_model is not None
    assert_same_model(ema.ema_model.module, average)
    recorded = list(trainer.run_history.get_metric_values("ema_model_eval_loss_epoch"))
    assert recorded[-1] == pytest.approx(evaluate_by_hand(average, points), rel=1e-6)
    assert len(recorded) == 2
    assert trainer.run_history.metric_name_prefix == ""
    assert evaluations.counts == [5, 5]


def test_the_average_does_not_change_the_training_and_is_saved_when_best(
    points: TensorDataset, tmp_path: Path
) -> None:
    ema = ModelEmaCallback(decay=0.5, save_path=tmp_path / "ema")
    trainer = train(build_trainer(callbacks=[ema]), points, 2, eval_dataset=points)
    assert_same_model(trainer.model, train(build_trainer(), points, 2, eval_dataset=points).model)
    losses = [float(v) for v in trainer.run_history.get_metric_values("ema_model_eval_loss_epoch")]
    saved = trainer.load_checkpoint(tmp_path / "ema", load_optimizer=False)
    assert saved["ema_model_eval_loss_epoch"] == min(losses)
    assert evaluate_by_hand(trainer.model, points) == pytest.approx(min(losses), rel=1e-6)


def test_the_default_callbacks_print_epochs_and_metrics(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = train(build_trainer(callbacks=DEFAULT_CALLBACKS), points, 2, eval_dataset=points)
    lines = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line]
    epochs = [
        "Epoch 1",
        "train_loss_epoch",
        "eval_loss_epoch",
        "Epoch 2",
        "train_loss_epoch",
        "eval_loss_epoch",
    ]
    assert lines == [f"Training on {trainer.device}, epochs", *epochs, "Training is finished"]


def test_the_bar_is_drawn_on_a_terminal_and_removed(
    points: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.interfaces.lifecycle.callbacks.REDRAW_SECONDS", 0.0)
    with terminal(monkeypatch) as written:
        train(
            build_trainer(callbacks=[ProgressBarCallback]), points, 1, eval_dataset=head(points, 9)
        )
    for line in (
        "train [==============================] 5/5",
        "eval [===============               ] 1/2",
    ):
        assert line in written[0]
    assert Screen().feed(written[0]).text == ""


def test_print_metrics_beside_the_defaults_prints_each_metric_once(
    points: TensorDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        build_trainer(callbacks=(*DEFAULT_CALLBACKS, PrintMetricsCallback)),
        points,
        1,
        eval_dataset=points,
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if "_loss_epoch" in line] == [
        "train_loss_epoch",
        "eval_loss_epoch",
    ]


def test_a_tracker_gets_every_epoch_of_a_second_run_too(points: TensorDataset) -> None:
    tracker = Recorded()
    trainer = build_trainer(callbacks=[Track(tracker)])
    for _ in range(2):
        train(trainer, points, 2)
    assert [row.epoch for row in tracker.rows if row.kind == "epoch"] == [1, 2, 1, 2]
