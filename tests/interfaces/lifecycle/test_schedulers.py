"""Schedulers of the lifecycle interface, and its trainer for timm's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    CosineLrScheduler,
    StatefulSchedulerBase,
    Trainer,
    TrainerWithTimmScheduler,
    WSDLrScheduler,
)
from tests.mistakes import raises

from .runs import build_trainer, train


def optimizer(*rates: float) -> SGD:
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def rates_of(scheduler: StatefulSchedulerBase, count: int, group: int = 0) -> list[float]:
    """The learning rate of each update."""
    rates = []
    for _ in range(count):
        rates.append(scheduler.optimizer.param_groups[group]["lr"])
        scheduler.step()
    return rates


def test_a_cosine_warms_up_and_cools_down() -> None:
    scheduler = CosineLrScheduler(
        optimizer(1.0),
        10,
        2,
        lr_min=0.0,
        num_warmup_epochs=2,
        warmup_starting_lr=0.0,
        num_cooldown_epochs=3,
    )
    rates = rates_of(scheduler, 24)
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert rates[9] == pytest.approx(0.5)
    assert rates[4:14] == sorted(rates[4:14], reverse=True)
    assert rates[14:] == [0.0] * 10


def test_ratios_are_of_each_groups_own_rate() -> None:
    scheduler = CosineLrScheduler(
        optimizer(1.0, 0.1),
        2,
        4,
        min_lr_ratio=0.5,
        num_warmup_epochs=1,
        warmup_starting_lr_ratio=0.25,
    )
    assert [group["lr"] for group in scheduler.optimizer.param_groups] == [
        0.25,
        pytest.approx(0.025),
    ]
    assert rates_of(scheduler, 9, group=1)[-1] == pytest.approx(0.05)


def test_a_cosine_covers_the_whole_run(points: TensorDataset) -> None:
    trainer = build_trainer(lr=0.1)
    rates: list[float] = []

    class Watching(Trainer):
        def optimizer_step(self) -> None:
            assert self.optimizer is not None
            rates.append(self.optimizer.param_groups[0]["lr"])
            super().optimizer_step()

    trainer = build_trainer(lr=0.1, kind=Watching)
    factory = CosineLrScheduler.create_scheduler_fn(lr_min=0.0)
    train(trainer, points, 4, create_scheduler_fn=factory, gradient_accumulation_steps=2)
    assert trainer.optimizer is not None
    assert len(rates) == 12
    assert rates[0] == 0.1
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)


def test_wsd_stays_at_its_peak_and_decays_at_the_end() -> None:
    scheduler = WSDLrScheduler(
        optimizer(1.0), total_steps=100, num_warmup_steps=10, warmup_starting_lr=0.0, lr_min=0.1, decay_phase_ratio=0.2,
        use_inverse_sqrt_decay=False,
    )  # fmt: skip
    rates = rates_of(scheduler, 102)
    assert rates[5] == pytest.approx(0.5)
    assert rates[10:81] == [1.0] * 71
    assert rates[90] == pytest.approx(1 / (0.5 / 0.1 + 0.5))
    assert rates[100:] == [0.1, 0.1]


def test_wsd_with_checkpoints_decays_before_each_and_goes_on_at_its_peak() -> None:
    scheduler = WSDLrScheduler(
        optimizer(1.0), num_epochs=4, num_update_steps_per_epoch=25, lr_min=0.01, num_checkpoints=3
    )  # fmt: skip
    rates = rates_of(scheduler, 101)
    assert [at for at in range(1, 101) if rates[at] > rates[at - 1]] == [25, 50]
    assert max(rates[24], rates[49], rates[99]) < 0.6
    assert rates[100] == 0.01


def test_any_field_can_be_scheduled_and_saved() -> None:
    class GrowingDecay(StatefulSchedulerBase):
        def __init__(self, optimizer: Any) -> None:
            super().__init__(optimizer, param_group_field="weight_decay")

        def get_updated_values(self, num_updates: int) -> float | None:
            return None if num_updates % 2 else num_updates / 100

    own = optimizer(1.0)
    scheduler = GrowingDecay(own)
    for _ in range(5):
        scheduler.step()
    assert own.param_groups[0]["weight_decay"] == 0.04
    other = GrowingDecay(optimizer(1.0))
    other.load_state_dict(scheduler.state_dict())
    other.step()
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.06
    with raises("unknown-group-field", "'betas'"):
        type(
            "Betas",
            (GrowingDecay,),
            {"__init__": lambda self, o: StatefulSchedulerBase.__init__(self, o, "betas")},
        )(own)


def test_a_timm_scheduler_is_stepped_with_updates_and_epochs(points: TensorDataset) -> None:
    steps: list[tuple[str, int]] = []

    class LikeTimms:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self, epoch: int) -> None:
            steps.append(("epoch", epoch))

        def step_update(self, num_updates: int) -> None:
            steps.append(("update", num_updates))

    trainer = build_trainer(kind=TrainerWithTimmScheduler)
    train(trainer, points, 2, create_scheduler_fn=LikeTimms, gradient_accumulation_steps=3)
    updates = [("update", number) for number in (1, 2, 3, 4)]
    assert steps == [*updates[:2], ("epoch", 1), *updates[2:], ("epoch", 2)]


def test_a_scheduler_that_create_scheduler_assigns_and_does_not_return_is_the_scheduler(
    points: TensorDataset,
) -> None:
    class Assigning(Trainer):
        def create_scheduler(self) -> None:
            assert self.optimizer is not None
            self.scheduler = StepLR(self.optimizer, step_size=1, gamma=0.5)

    trainer = build_trainer(kind=Assigning, lr=0.08)
    trainer.train(points, 1, max_num_train_steps=3)
    assert trainer.optimizer is not None
    assert trainer.optimizer.param_groups[0]["lr"] == 0.01
