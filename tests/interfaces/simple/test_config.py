"""The simple interface's settings, schedulers, devices and batches."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import ConfigurationError
from loopwright.data.random import seed_everything
from loopwright.interfaces.simple import Trainer
from tests.loops import assert_same_model, build_linear, build_net, train_by_hand

from .programs import adam, cross_entropy, in_order, shuffled

Space = SimpleNamespace
CONFIGS = {
    "dicts": lambda **values: {"training": values},
    "objects": lambda **values: Space(training=Space(**values)),
    "object of dict": lambda **values: Space(training=values),
    "dict of object": lambda **values: {"training": Space(**values)},
}


@pytest.mark.parametrize("build", CONFIGS.values(), ids=CONFIGS.keys())
def test_config_of_any_make_is_read(build: Any, points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    optimizer = torch.optim.AdamW(by_hand.parameters(), weight_decay=0.3, fused=True)
    scheduler = StepLR(optimizer, 2, gamma=0.5)
    train_by_hand(by_hand, optimizer, points, clip_norm=0.1, every_update=scheduler)
    config = build(weight_decay=0.3, max_grad_norm=0.1, scheduler_step_per_batch=True)
    seed_everything(0)
    trainer = Trainer(
        model, None, cross_entropy, config, scheduler=partial(StepLR, step_size=2, gamma=0.5)
    )
    trainer.train(shuffled(points), 1)
    assert_same_model(model, by_hand)


def test_accumulated_batches_are_one_update_of_the_big_batch(points: TensorDataset) -> None:
    model, by_hand = build_net(), build_net()
    train_by_hand(by_hand, adam(by_hand), points, accumulate=2)
    seed_everything(0)
    config = {"training": {"gradient_accumulation_steps": 2}}
    Trainer(model, adam(model), cross_entropy, config).train(shuffled(points), 1)
    assert_same_model(model, by_hand)


@pytest.mark.parametrize(("per_batch", "steps"), [(True, 15), (False, 3), (None, 3)])
def test_scheduler_is_stepped_per_batch_or_per_epoch_and_never_both(
    per_batch: bool | None, steps: int, points: TensorDataset
) -> None:
    model = build_linear()
    optimizer = adam(model)
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    config = {"training": {"scheduler_step_per_batch": per_batch}}
    trainer = Trainer(model, optimizer, cross_entropy, config, scheduler=scheduler)
    trainer.train(shuffled(points), 3)
    assert scheduler.last_epoch == steps
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**steps)


@pytest.mark.parametrize("has_eval", [True, False])
def test_plateau_goes_by_the_eval_loss_or_else_the_train_loss(
    has_eval: bool, points: TensorDataset
) -> None:
    model = build_linear()
    optimizer = adam(model)
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    trainer = Trainer(model, optimizer, cross_entropy, scheduler=scheduler)
    history = trainer.train(shuffled(points), 3, in_order(points) if has_eval else None)
    assert scheduler.best == min(history["eval_loss" if has_eval else "train_loss"])
    assert scheduler.last_epoch == 3


def test_device_is_detected_or_taken_as_given() -> None:
    best = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    assert Trainer(nn.Linear(2, 2), None, None).device.type == best
    model = nn.Linear(2, 2)
    assert Trainer(model, None, None, device=torch.device("meta")).device.type == "meta"
    assert model.weight.device.type == "meta"


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        (torch.ones(2),),
        [torch.ones(2), torch.ones(2)],
        (torch.ones(2), [torch.ones(2), {"deep": torch.ones(2)}]),
        {"input_ids": torch.ones(2), "labels": torch.ones(2)},
        (torch.ones(2), torch.ones(2), torch.ones(2)),
    ],
    ids=["tensor", "one-element tuple", "pair", "nested", "dict", "triple"],
)
def test_every_tensor_of_a_batch_goes_to_the_device(batch: Any) -> None:
    def devices(value: Any) -> set[str]:
        if isinstance(value, Tensor):
            return {value.device.type}
        parts = value.values() if isinstance(value, dict) else value or ()
        return set().union(*(devices(part) for part in parts))

    trainer = Trainer(nn.Linear(2, 2), None, None, device="meta")
    inputs, targets = trainer._prepare_batch(batch)
    assert devices(inputs) == {"meta"}
    assert devices(targets) <= {"meta"}


@pytest.mark.parametrize(
    "loss_fn", [lambda out: out.square().mean(), lambda out, targets: out.square().mean()]
)
def test_batch_without_targets_trains_with_a_loss_of_one_or_two_arguments(loss_fn: Any) -> None:
    model = nn.Linear(2, 2)
    losses = Trainer(model, adam(model), loss_fn).train(
        DataLoader(torch.randn(12, 2), batch_size=4), 2
    )["train_loss"]
    assert losses[1] < losses[0]


class Doubler(nn.Module):
    """Takes its input by name, and no targets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(values)


class CarriesLoss(Doubler):
    """Takes its targets too, and returns outputs with a loss of their own."""

    def forward(self, values: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        outputs = self.linear(values)
        loss = None if labels is None else (outputs - labels).square().mean()
        return SimpleNamespace(loss=loss, logits=outputs)


DICTS = [{"values": torch.ones(2), "labels": torch.ones(1)} for _ in range(6)]


def test_dict_goes_to_the_model_as_keywords_and_its_labels_to_the_loss() -> None:
    seen = []

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets)
        return (outputs - targets).square().mean()

    model = Doubler()
    Trainer(model, adam(model), loss_fn).train(DataLoader(DICTS, batch_size=6), 1)
    assert torch.equal(seen[0], torch.ones(6, 1))


def test_loss_that_the_outputs_carry_wins_over_the_loss_function() -> None:
    def never(outputs: Any, targets: Any) -> Tensor:
        raise AssertionError

    model = CarriesLoss()
    batch = OrderedDict(values=torch.ones(3, 2), labels=torch.zeros(3, 1))
    expected = model(**batch).loss.item()
    assert Trainer(model, None, never).eval_step(batch) == {"loss": expected}
    assert Trainer(model, None, None).eval_step(batch) == {"loss": expected}


def test_frozen_model_can_be_evaluated_but_not_trained(points: TensorDataset) -> None:
    model = build_linear().requires_grad_(False)
    trainer = Trainer(model, None, cross_entropy)
    assert set(trainer.evaluate(in_order(points))) == {"loss"}
    with pytest.raises(ConfigurationError, match="Nothing to train"):
        trainer.train(shuffled(points), 1)
