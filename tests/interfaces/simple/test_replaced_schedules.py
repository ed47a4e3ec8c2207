"""Schedulers that a replaced method steps, or leaves alone: each is stepped once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import ChainedScheduler, StepLR
from torch.utils.data import TensorDataset

from loopwright.interfaces.simple import Trainer
from tests.mistakes import raises

from .methods import OwnEpoch, OwnStep, assert_same, build, loader, train_by_hand
from .programs import cross_entropy

PER_BATCH = {"training": {"scheduler_step_per_batch": True}}


def test_train_step_that_steps_an_epochs_scheduler_has_it_to_itself(points: TensorDataset) -> None:
    class StepsBoth(OwnStep):
        def train_step(self, batch: Any) -> dict[str, float]:
            result = super().train_step(batch)
            self.scheduler.step()
            return result

    trainer = build(StepsBoth)
    trainer.train(loader(points), 2)
    assert trainer.scheduler.last_epoch == 10


def test_chained_scheduler_stepped_in_an_own_epoch_is_not_stepped_again(
    points: TensorDataset,
) -> None:
    trainer = build(OwnEpoch)
    assert trainer.optimizer is not None
    trainer.scheduler = ChainedScheduler([StepLR(trainer.optimizer, 1, gamma=0.5)])
    trainer.train(loader(points), 2)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.25)


def test_own_epoch_that_leaves_a_scheduler_of_batches_alone_has_it_follow_its_steps(
    points: TensorDataset,
) -> None:
    class Stepping(Trainer):
        def train_epoch(
            self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
        ) -> dict[str, float]:
            assert self.optimizer is not None
            rates = []
            for inputs, targets in train_dataloader:
                self.optimizer.zero_grad()
                cross_entropy(self.model(inputs), targets).backward()
                rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
            return {"first": rates[0], "second": rates[1]}

    trainer = build(Stepping, PER_BATCH)
    assert trainer.train(loader(points), 2) == {
        "first": [0.01, 0.01 * 0.5**5],
        "second": pytest.approx([0.01, 0.01 * 0.5**5]),
    }
    assert trainer.scheduler.last_epoch == 10


def test_loop_around_train_epoch_that_steps_the_scheduler_again_is_refused(
    points: TensorDataset,
) -> None:
    class Twice(Trainer):
        def train(self, train_dataloader: Any, num_epochs: int, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            for epoch in range(num_epochs):
                self.train_epoch(train_dataloader, epoch=epoch)
                self.scheduler.step()

    with raises("scheduler-stepped-twice"):
        build(Twice).train(loader(points), 3)


def test_scheduler_moved_by_a_loaded_checkpoint_is_no_second_step(
    points: TensorDataset, tmp_path: Path
) -> None:
    trainer = build(Trainer)
    trainer.train(loader(points), 3, save_dir=tmp_path)
    trainer.load_checkpoint(tmp_path / "checkpoint_epoch_1")
    trainer.train_epoch(loader(points))
    trainer.load_checkpoint(tmp_path / "checkpoint_epoch_1")
    trainer.train_epoch(loader(points))
    assert_same(trainer, train_by_hand(points, 2))
