"""The one metric that stands for a run."""

from __future__ import annotations

import pytest

from loopwright.metrics.best import headline


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["loss"], "loss"),
        (["accuracy", "loss"], "loss"),
        (["loss", "eval_accuracy"], "eval_accuracy"),
        (["loss", "eval_accuracy", "eval_loss"], "eval_loss"),
        (["loss", "accuracy", "test_loss"], "test_loss"),
        (["loss", "val_accuracy"], "val_accuracy"),
        (["train/loss", "val/acc", "val/loss"], "val/loss"),
        (["loss", "valLoss"], "valLoss"),
        (["loss", "validation_f1"], "validation_f1"),
        (["train_loss", "eval_ema_loss", "eval_loss"], "eval_loss"),
        (["loss", "eval_foo", "eval_rmse"], "eval_rmse"),
        (["lr", "epoch_time", "accuracy"], "accuracy"),
        (["D_real", "D_fake", "G_GAN", "G_L1"], "G_L1"),
        (["D_real", "D_fake", "G_GAN"], "G_GAN"),
        (["loss_D", "loss_G"], "loss_G"),
        (["D_real", "G_L1", "total"], "total"),
        (["critic_loss", "generator_loss"], "generator_loss"),
        (["best_eval_loss", "eval_loss"], "eval_loss"),
        (["eval_loss_at_best_eval_accuracy", "eval_accuracy"], "eval_accuracy"),
        (["D_real", "D_fake"], "D_real"),
    ],
)
def test_an_evaluation_comes_first_then_a_loss_then_the_first(names, expected):
    assert headline(names) == expected


def test_a_data_set_that_a_callback_evaluates_is_an_evaluation():
    assert headline(["loss", "night_loss", "night_accuracy"], ["night"]) == "night_loss"
    assert headline(["loss", "night_loss"]) == "loss"
