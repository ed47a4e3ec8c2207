"""Behind every interface a run draws its own random numbers, and the program's generators are as
before afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import seed_everything
from loopwright.interfaces.lifecycle import Trainer as LifecycleTrainer
from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig
from loopwright.interfaces.simple import Trainer as SimpleTrainer
from tests.interfaces.configured.parts import CustomTrainer, build_trainer
from tests.interfaces.test_several_optimizers import Colouring
from tests.loops import assert_same_model
from tests.training.test_own_generators import draw, generators

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(7))
DATA = TensorDataset(X, X.sum(1, keepdim=True))


class Net(nn.Module):
    """Draws from every generator, in evaluations as well, and remembers what it drew."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1)
        self.drawn: list[list[float]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.drawn.append(draw())
        return self.layer(nn.functional.dropout(inputs, 0.5))


def loader(*, shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(DATA, 4, shuffle=shuffle)


class Modular(DreamTrainer):
    def configure_models(self) -> None:
        self.net = Net()

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    def configure_dataloaders(self) -> Any:
        return loader(shuffle=True), loader()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.backward(loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": nn.functional.mse_loss(self.net(batch[0]), batch[1])}


def simple() -> SimpleTrainer:
    net = Net()
    return SimpleTrainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.MSELoss())


def lifecycle() -> LifecycleTrainer:
    net = Net()
    return LifecycleTrainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), callbacks=[])


class Painting(Colouring):
    def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
        draw()
        super().train_step(x, y, idx, **kwargs)


class Configured(CustomTrainer):
    def train_step(self, batch: Any, model: Any) -> Any:
        draw()
        return super().train_step(batch, model)


def calls_of(interface: str, folder: Path) -> list[Callable[[], object]]:
    """A trainer of the interface is built, and these are calls of it."""
    if interface == "simple":
        one = simple()
        epoch = lambda: one.train_epoch(loader(shuffle=True), loader())  # noqa: E731
        return [
            lambda: one.train(loader(shuffle=True), 1, loader()),
            epoch,
            lambda: one.evaluate(loader()),
        ]
    if interface == "lifecycle":
        two = lifecycle()
        train = lambda: two.train(DATA, 1, DATA)  # noqa: E731
        return [train, train, lambda: two.evaluate(DATA)]
    if interface == "configured":
        three = build_trainer(Configured)
        return [three.train, lambda: three.evaluate("train"), lambda: three.predict("train")]
    if interface == "modular":
        return [Modular(DreamTrainerConfig(n_epochs=2, progress="silent")).fit]
    four = Painting(folder, True)
    return [lambda: four.train_paired(0), lambda: four.train_paired(1)]


@pytest.mark.parametrize(
    "interface", ["simple", "lifecycle", "configured", "modular", "adversarial"]
)
def test_the_generators_of_the_program_are_as_before_after_every_call(
    interface: str, tmp_path: Path
) -> None:
    calls = calls_of(interface, tmp_path)
    draw()
    for call in calls:
        before = generators()
        call()
        assert generators() == before


def test_epochs_of_the_simple_interface_are_one_run_whatever_the_program_draws_between_them() -> (
    None
):
    trainers = [simple(), simple()]
    for trainer, draws in zip(trainers, (False, True), strict=True):
        torch.manual_seed(3)
        np.random.seed(3)
        for _ in range(2):
            trainer.train_epoch(loader(shuffle=True))
            if draws:
                torch.rand(3), np.random.rand(3)
    assert_same_model(trainers[0].model, trainers[1].model)
    drawn = [
        (torch_number, numpy_number)
        for torch_number, *_, numpy_number, _ in trainers[0].model.drawn
    ]
    assert drawn == [
        (torch_number, numpy_number)
        for torch_number, *_, numpy_number, _ in trainers[1].model.drawn
    ]
    assert len(set(drawn)) == len(drawn) == 8


def test_seed_everything_decides_for_a_modular_config_without_a_seed() -> None:
    drawn = []
    for seed in (1, 2, 1):
        seed_everything(seed)
        trainer = Modular(DreamTrainerConfig(progress="silent"))
        trainer.fit()
        drawn.append(trainer.net.drawn)
    assert drawn[0] == drawn[2] != drawn[1]
