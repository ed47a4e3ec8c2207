"""Losses and gradient norms that are not finite never reach the weights."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import NonFiniteGuard

from ..loops import assert_same_model, assert_same_optimizer, build_linear
from ..mistakes import raises
from .runs import assert_same_after_crash, build_trainer


def poisoned(points: Any, at: tuple[int, ...] = (2,), value: float = nan) -> list[Any]:
    """Batches of which some give a loss of that value."""
    batches = [[tensor[i : i + 6].clone() for tensor in points.tensors] for i in range(0, 36, 6)]
    for number in at:
        batches[number][0][0, 0] = value
    return batches


class Weights(Callback):
    """Copies the model and optimizer before every step."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Any] = []

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self.models.append(deepcopy(trainer.model))
        self.optimizers.append(deepcopy(trainer.optimizers["optimizer"]))


def guarded(*callbacks: Any, **options: Any) -> Trainer:
    return build_trainer(
        callbacks, build_linear(), optimizer=partial(torch.optim.Adam, lr=0.1), **options
    )


@pytest.mark.parametrize("value", [nan, inf])
def test_by_default_it_raises_and_the_weights_are_those_before_the_step(points, value):
    weights = Weights()
    trainer = guarded(weights)
    with raises("non-finite", "'optimizer'"):
        trainer.train(poisoned(points, value=value), 1)
    assert_same_model(trainer.model, weights.models[2])
    assert_same_optimizer(trainer.optimizers["optimizer"], weights.optimizers[2])
    assert all(torch.isfinite(param).all() for param in trainer.model.parameters())


def test_skip_leaves_the_update_out_as_if_the_batch_had_not_been(points):
    guard = NonFiniteGuard("skip")
    trainer = guarded(guard)
    trainer.train(poisoned(points, at=(1, 4)), 1)
    other = guarded()
    other.train(
        [batch for number, batch in enumerate(poisoned(points, at=())) if number not in (1, 4)], 1
    )
    assert_same_model(trainer.model, other.model)
    assert_same_optimizer(trainer.optimizers["optimizer"], other.optimizers["optimizer"])
    assert guard.num_skipped == 2
    assert trainer.progress.update == 6
    assert trainer.run.updates.by_name["optimizer"].num_updates == 4


def test_one_bad_batch_spoils_its_whole_window(points):
    weights = Weights()
    trainer = guarded(NonFiniteGuard("skip"), weights, accumulate=2)
    trainer.train(poisoned(points, at=(2,)), 1)
    assert_same_model(weights.models[4], weights.models[2])
    assert trainer.run.updates.by_name["optimizer"].num_updates == 2


def test_after_too_many_skips_it_raises(points):
    guard = NonFiniteGuard("skip", max_skips=1)
    with raises("non-finite"):
        guarded(guard).train(poisoned(points, at=(1, 4)), 1)


def test_stop_ends_training_with_the_weights_before_the_step(points):
    weights = Weights()
    trainer = guarded(NonFiniteGuard("stop"), weights)
    trainer.train(poisoned(points), 1)
    assert trainer.progress.update == 3
    assert trainer.stop_reason == "the loss of optimizer 'optimizer' is nan in update 3 (epoch 1)"
    assert_same_model(trainer.model, weights.models[2])


def explode(grad: torch.Tensor) -> torch.Tensor:
    return grad * inf


def test_a_gradient_that_is_not_finite_is_refused_before_clipping(points):
    weights = Weights()
    trainer = guarded(weights, clip_norm=1.0)
    trainer.model.weight.register_hook(explode)
    with raises("non-finite", "'weight'"):
        trainer.train(poisoned(points, at=()), 1)
    assert_same_model(trainer.model, weights.models[0])


def test_a_crashed_run_has_skipped_as_often(tmp_path, points):
    class Poison(Callback):
        def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
            if trainer.progress.step in (1, 6):
                batch[0][0, 0] = nan

    guards: list[NonFiniteGuard] = []

    def build() -> list[Callback]:
        guards.append(NonFiniteGuard("skip"))
        return [Poison(), guards[-1]]

    assert_same_after_crash(
        tmp_path, points, build, after_update=4, num_epochs=2, build_model=build_linear
    )
    assert [guard.num_skipped for guard in guards] == [2, 1, 2]
