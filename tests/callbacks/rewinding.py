"""Data with bad batches in it, and trainers to go back over them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from loopwright import Schedule, Trainer

from ..loops import assert_same_model, assert_same_optimizer, build_net

cross_entropy = nn.functional.cross_entropy
Batches = list[tuple[Tensor, Tensor]]


def good_batches(num: int = 10) -> Batches:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(num, 4, 6, generator=generator)
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def poisoned(batches: Batches, *at: int, value: float = math.nan) -> Batches:
    """The batches with bad ones in front of those at these places."""
    result = []
    for number, (inputs, targets) in enumerate(batches):
        if number in at:
            result.append((torch.full_like(inputs, value), targets))
        result.append((inputs, targets))
    return result


def build(callbacks: Any = (), **options: Any) -> Trainer:
    net = build_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    defaults: dict[str, Any] = {
        "scheduler": Schedule(ExponentialLR(optimizer, 0.9), every="update")
    }
    options = defaults | {"progress": "silent"} | options
    return Trainer(net, optimizer, cross_entropy, callbacks=callbacks, **options)


def assert_same_run(trainer: Trainer, other: Trainer) -> None:
    assert_same_model(trainer.model, other.model)
    assert_same_optimizer(trainer.optimizers["optimizer"], other.optimizers["optimizer"])
    assert (
        trainer.schedules["scheduler"].scheduler.state_dict()
        == other.schedules["scheduler"].scheduler.state_dict()
    )
    assert list(trainer.history.steps["loss"]) == list(other.history.steps["loss"])
    assert list(trainer.history.steps["loss"].steps) == list(other.history.steps["loss"].steps)
    assert trainer.history.epochs == other.history.epochs
    own, others = trainer.progress.state_dict(), other.progress.state_dict()
    assert {k: v for k, v in own.items() if "seconds" not in k} == {
        k: v for k, v in others.items() if "seconds" not in k
    }
