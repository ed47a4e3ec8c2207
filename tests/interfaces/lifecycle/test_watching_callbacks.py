"""Callbacks that act on losses and metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import NonFiniteLossError, Runtime
from loopwright.interfaces.lifecycle import (
    EarlyStoppingCallback,
    SaveBestModelCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
)

from ...loops import build_net
from .runs import build_trainer, each, train


class Scripted(TrainerCallback):
    """Records the values of a metric that the test wrote down."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric(
            "score", self.values[trainer.run_history.current_epoch - 1]
        )


def epochs_until_stop(points: TensorDataset, values: tuple[float, ...], **options: Any) -> int:
    stopper = EarlyStoppingCallback(
        watch_metric="score", **({"greater_is_better": False} | options)
    )
    trainer = train(build_trainer(callbacks=[Scripted(*values), stopper]), points, len(values))
    return len(list(trainer.run_history.get_metric_values("score")))


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ((3.0, 2.0, 2.5, 1.0), {"early_stopping_patience": 1}, 3),
        ((3.0, 2.0, 2.5, 1.0), {"early_stopping_patience": 2}, 4),
        ((3.0, 2.995, 2.0), {"early_stopping_threshold": 0.01}, 2),
        ((3.0, 2.995, 2.0), {"early_stopping_threshold": 0.001}, 3),
        ((1.0, 2.0, 1.5), {"greater_is_better": True}, 3),
        ((1.0, 2.0, 1.5), {"greater_is_better": False}, 2),
        ((math.nan, 2.0, 1.0), {"early_stopping_patience": 2}, 3),
    ],
)
def test_early_stopping(points: TensorDataset, values: Any, options: Any, epochs: int) -> None:
    assert epochs_until_stop(points, values, **options) == epochs


def test_early_stopping_begins_anew_with_every_run_unless_configured_otherwise(
    points: TensorDataset,
) -> None:
    for reset, epochs in ((True, 2), (False, 1)):
        stopper = EarlyStoppingCallback(
            watch_metric="score", greater_is_better=False, reset_on_train=reset
        )
        trainer = build_trainer(callbacks=[Scripted(2.0, 1.0), stopper])
        train(trainer, points, 2)
        trainer.callback_handler.callbacks[0] = Scripted(3.0, 2.0)
        trainer.callback_handler._hooks.clear()
        train(trainer, points, 2)
        assert len(list(trainer.run_history.get_metric_values("score"))) == epochs


def test_the_best_model_is_saved_and_loaded_at_the_end(
    points: TensorDataset, tmp_path: Path
) -> None:
    states: list[dict[str, Any]] = []

    def remember(trainer: Trainer) -> None:
        states.append({name: value.clone() for name, value in trainer.model.state_dict().items()})

    best = SaveBestModelCallback(tmp_path / "best", watch_metric="score", greater_is_better=True)
    callbacks = [Scripted(1.0, 3.0, 2.0), each("on_training_run_epoch_end", remember), best]
    trainer = train(build_trainer(callbacks=callbacks), points, 3)
    assert best.best_metric_epoch == 2
    assert all(
        torch.equal(value, states[1][name]) for name, value in trainer.model.state_dict().items()
    )
    assert trainer.load_checkpoint(tmp_path / "best")["score"] == 3.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_before_it_reaches_the_weights(
    points: TensorDataset, bad: float
) -> None:
    class Spoilt(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            return output | {"loss": output["loss"] * bad}

    trainer = build_trainer(kind=Spoilt, callbacks=[TerminateOnNaNCallback])
    with pytest.raises(
        NonFiniteLossError, match=rf"is {bad} in update 1 \(epoch 1\).*The weights are those"
    ):
        train(trainer, points, 2)
    reference = build_net()
    assert trainer._core.progress.update == 0
    assert all(
        torch.equal(a, b)
        for a, b in zip(trainer.model.parameters(), reference.parameters(), strict=True)
    )


def test_an_evaluation_loss_that_is_no_number_ends_training(
    points: TensorDataset,
) -> None:
    class Spoilt(Trainer):
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            return output | {"loss": output["loss"] * math.nan}

    trainer = build_trainer(kind=Spoilt, callbacks=[TerminateOnNaNCallback])
    with pytest.raises(NonFiniteLossError, match="eval_loss_epoch is nan in epoch 1"):
        train(trainer, points, 3, eval_dataset=points)
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 1
    with pytest.raises(NonFiniteLossError, match="evaluation_loss is nan"):
        trainer.evaluate(points)


def test_a_plain_optimizer_step_is_guarded_too_where_reading_a_loss_would_wait(
    points: TensorDataset,
) -> None:
    class Slow(Runtime):
        reads_are_free = False  # type: ignore[assignment]

    class Plain(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            return output | {"loss": output["loss"] * math.nan}

        def optimizer_step(self) -> None:
            assert self.optimizer is not None
            self.optimizer.step()

    trainer = build_trainer(kind=Plain, callbacks=[TerminateOnNaNCallback])
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, fused=True)
    trainer._runtime = Slow("cpu")
    with pytest.raises(NonFiniteLossError, match="is not finite"):
        train(trainer, points, 2)
    assert all(map(torch.equal, trainer.model.parameters(), build_net().parameters()))
