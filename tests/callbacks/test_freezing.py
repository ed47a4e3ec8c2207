"""Parts of a model that are frozen, for some epochs or a whole run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import Freeze

from ..loops import assert_same_model, batches, build_linear
from ..mistakes import raises
from .runs import assert_same_after_crash, build_trainer, train


def build_parts() -> nn.Sequential:
    """A backbone with batch norm, and a head with one too."""
    torch.manual_seed(3)
    model = nn.Sequential()
    model.add_module("backbone", nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()))
    model.add_module("head", nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    return model


def trained(points: Any, *callbacks: Callback, num_epochs: int = 2, **options: Any) -> Trainer:
    return train(build_trainer(callbacks, build_parts(), **options), points, num_epochs)


def test_frozen_parts_stay_bit_for_bit_as_they_are_and_the_rest_trains(points):
    model, start = trained(points, Freeze("backbone")).model, build_parts()
    assert_same_model(model.backbone, start.backbone)
    assert not torch.equal(model.head[0].weight, start.head[0].weight)
    assert not torch.equal(model.head[1].running_mean, start.head[1].running_mean)


def test_frozen_training_is_the_hand_written_loop(points):
    trainer = trained(points, Freeze("backbone"), optimizer=partial(torch.optim.SGD, lr=0.1))
    model = build_parts()
    model.backbone.requires_grad_(False)
    model.backbone.eval()
    optimizer = torch.optim.SGD(model.head.parameters(), 0.1)
    for epoch in range(2):
        for inputs, targets in batches(points, 8, epoch):
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same_model(trainer.model, model)


@pytest.mark.parametrize("fused", [None, True, False])
def test_momentum_of_parts_that_train_later_begins_there_as_in_the_hand_written_loop(points, fused):
    """The fused kernel of SGD, which a factory gets, fails where some parameters have a buffer and
    others not."""
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused)
    trainer = trained(points, Freeze("backbone", until_epoch=1), optimizer=optimizer)
    model = build_parts()
    model.backbone.requires_grad_(False)
    model.backbone.eval()
    by_hand = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for inputs, targets in batches(points, 8, epoch):
            nn.functional.cross_entropy(model(inputs), targets).backward()
            by_hand.step()
            by_hand.zero_grad()
        model.requires_grad_(True).train()
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


class WakesUp(Callback):
    """Puts everything into train mode after each epoch, and evaluates inside of them."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.modes: list[tuple[bool, bool]] = []

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        trainer.evaluate(self.data)
        self.modes.append((trainer.model.backbone[1].training, trainer.model.head[1].training))

    def on_epoch_end(self, trainer: Trainer, metrics: Any) -> None:
        trainer.model.train()


def test_frozen_batch_norm_stays_so_after_evaluations_and_in_every_epoch(points):
    wakes = WakesUp(points)
    trained(points, Freeze("backbone"), wakes)
    assert set(wakes.modes) == {(False, True)}


def test_until_an_epoch_then_everything_trains(points):
    frozen = trained(points, Freeze("backbone", until_epoch=2), num_epochs=2)
    assert_same_model(frozen.model.backbone, build_parts().backbone)
    model = trained(points, Freeze("backbone", until_epoch=2), num_epochs=3).model
    assert not torch.equal(model.backbone[0].weight, frozen.model.backbone[0].weight)
    assert not torch.equal(model.backbone[1].running_mean, frozen.model.backbone[1].running_mean)
    assert all(module.training for module in model.modules())


def trainable(model: nn.Module) -> set[str]:
    return {name for name, param in model.named_parameters() if param.requires_grad}


@pytest.mark.parametrize(
    ("pattern", "frozen"),
    [
        ("head.2", {"head.2.weight", "head.2.bias"}),
        (
            "*.bias",
            {"backbone.0.bias", "backbone.1.bias", "head.0.bias", "head.1.bias", "head.2.bias"},
        ),
        ("head.[01]", {"head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias"}),
        ("head.0.weight", {"head.0.weight"}),
        ("model.head.2", {"head.2.weight", "head.2.bias"}),
    ],
)
def test_names_and_patterns_choose_modules_and_parameters(points, pattern, frozen):
    everything = trainable(build_parts())
    assert trainable(trained(points, Freeze(pattern)).model) == everything - frozen


def test_a_name_that_matches_nothing_is_refused_with_the_nearest(points):
    with raises("unknown-part", "'backbon'", "did you mean backbone?"):
        trained(points, Freeze("head", "backbon"))


def test_a_module_of_another_model_is_refused(points):
    with raises("foreign-module"):
        trained(points, Freeze(build_linear()))


def test_unfreezing_what_no_optimizer_holds_is_refused_at_the_start(points):
    model = build_parts()
    optimizer = torch.optim.SGD(model.head.parameters(), 0.1)
    with raises("unfrozen-not-in-optimizer"):
        train(
            build_trainer([Freeze("backbone", until_epoch=1)], model, optimizer=optimizer), points
        )


@pytest.mark.parametrize("after_update", [5, 7])
def test_a_crashed_run_freezes_and_unfreezes_exactly(tmp_path, points, after_update):
    def build() -> list[Callback]:
        return [
            Freeze("backbone.0", until_epoch=2),
            Freeze("backbone", until_epoch=1),
            Freeze("head.2"),
        ]

    trainer = assert_same_after_crash(
        tmp_path, points, build, after_update, build_model=build_parts
    )
    assert trainable(trainer.model) == {
        name for name, _ in build_parts().named_parameters() if "head.2" not in name
    }


def test_naming_nothing_is_refused():
    with raises("nothing-to-freeze"):
        Freeze([])
