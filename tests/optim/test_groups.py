"""Optimizers whose options differ by the names of parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Trainer
from loopwright.callbacks import (
    GroupedOptimizer,
    LearningRateLog,
)

from ..callbacks.runs import assert_same_after_crash, build_trainer, train
from ..loops import assert_same_model, build_net, train_by_hand
from ..mistakes import raises

AdamW = partial(GroupedOptimizer, torch.optim.AdamW, lr=0.1, weight_decay=0.5)


def options(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """The learning rate and weight decay of every parameter, by name."""
    found = {
        id(param): (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for param in group["params"]
    }
    return {name: found[id(param)] for name, param in model.named_parameters()}


def built(factory: GroupedOptimizer) -> dict[str, tuple[float, float]]:
    model = build_net()
    return options(model, factory.build({"model": model}))


@pytest.mark.parametrize("pattern", ["0", "0.*", "re:0\\..*", "model.0"])
def test_a_part_is_named_by_its_module_a_pattern_or_a_regular_expression(pattern):
    found = built(AdamW(modifiers={pattern: {"lr_scale": 0.1}}))
    scaled = {name for name, (lr, _) in found.items() if lr == pytest.approx(0.01)}
    assert scaled == {"0.weight", "0.bias"}


def test_the_first_modifier_that_matches_counts():
    found = built(AdamW(modifiers={"0.bias": {"lr_scale": 0.5}, "0": {"lr_scale": 0.1}}))
    assert found["0.bias"][0] == pytest.approx(0.05)
    assert found["0.weight"][0] == pytest.approx(0.01)


def test_biases_and_norms_have_no_decay_if_asked_for():
    found = built(AdamW(no_decay=True))
    assert {name for name, (_, decay) in found.items() if decay == 0.0} == {
        "0.bias",
        "1.weight",
        "1.bias",
        "4.bias",
    }
    assert {decay for _, decay in found.values()} == {0.0, 0.5}


def test_layers_learn_slower_from_the_last_to_the_first():
    found = built(AdamW(layer_factor=0.5, modifiers={"1": {"lr_scale": 2.0}}))
    rates = {name.partition(".")[0]: lr for name, (lr, _) in found.items()}
    assert rates == pytest.approx({"0": 0.025, "1": 0.1, "4": 0.1})


def test_a_trainer_builds_it_from_the_names_of_its_model(points):
    model, other = build_net(), build_net()
    factory = AdamW(modifiers={"0": {"lr_scale": 0.1}}, no_decay=True)
    train(build_trainer([], model, optimizer=factory), points, 2)
    groups = [
        {"params": [other[0].weight], "lr": 0.1 * 0.1},
        {"params": [other[0].bias], "lr": 0.1 * 0.1, "weight_decay": 0.0},
        {"params": [other[1].weight, other[1].bias, other[4].bias], "weight_decay": 0.0},
        {"params": [other[4].weight]},
    ]
    train_by_hand(
        other, torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5, fused=True), points, epochs=2
    )
    assert_same_model(model, other)


def test_each_of_several_models_has_its_own(points):
    class Pair(Trainer):
        def train_step(self, batch: Any) -> Any:
            for name in ("first", "second"):
                loss = nn.functional.cross_entropy(getattr(self, name)(batch[0]), batch[1])
                self.update(loss, name)
            return loss

    factories = {"first": AdamW(modifiers={"0": {"lr_scale": 0.1}}), "second": AdamW()}
    trainer = Pair({"first": build_net(1), "second": build_net(2)}, factories, progress="silent")
    trainer.train(points, 1, batch_size=8)
    assert [len(trainer.optimizers[name].param_groups) for name in ("first", "second")] == [2, 1]


def test_a_crashed_run_goes_on_with_the_same_groups(tmp_path, points):
    factory = AdamW(modifiers={"0": {"lr_scale": 0.1}}, no_decay=True, layer_factor=0.5)
    assert_same_after_crash(tmp_path, points, lambda: [LearningRateLog()], 6, optimizer=factory)


def test_a_name_that_is_not_there_is_refused_with_the_nearest(points):
    trainer = build_trainer(optimizer=AdamW(modifiers={"0.weigth": {"lr_scale": 0.1}}))
    with raises("unknown-part", "'0.weigth'", "did you mean 0.weight?"):
        train(trainer, points)
