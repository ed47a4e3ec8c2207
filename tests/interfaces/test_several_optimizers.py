"""Several optimizers for one loss, behind the interfaces that have several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Schedule
from loopwright.interfaces.adversarial import Trainer as AdversarialTrainer
from loopwright.interfaces.configured import TrainerResult
from tests.interfaces.configured.parts import CustomTrainer, build_trainer
from tests.loops import assert_same_model


def adamw(params: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=0.01)


def matrices(params: Any) -> torch.optim.AdamW:
    return adamw([param for param in params if param.ndim == 2])


def vectors(params: Any) -> torch.optim.AdamW:
    return adamw([param for param in params if param.ndim < 2])


def decay(optimizer: Any) -> ExponentialLR:
    return ExponentialLR(optimizer, 0.9)


class Own(CustomTrainer):
    """A step of the user's own that updates both optimizers, and the schedulers of one of them."""

    def train_step(self, batch: Any, model: Any) -> TrainerResult:
        result = super().train_step(batch, model)
        self.update(result.total_loss, list(self.optimizers))
        return result


@pytest.mark.parametrize("kind", [CustomTrainer, Own])
@pytest.mark.parametrize("settings", [{}, {"effective_batch_size": 12, "max_batch_size": 5}])
def test_the_configured_interface_updates_all_optimizers_of_a_model_with_its_total_loss(
    kind, settings
):
    both, one = {"matrices": matrices, "vectors": vectors}, adamw
    schedules = {name: Schedule(decay, every="update") for name in both}
    first = build_trainer(kind, optimizer=both, scheduler=schedules, max_epochs=2, **settings)
    first.train()
    second = build_trainer(
        optimizer=one, scheduler=Schedule(decay, every="update"), max_epochs=2, **settings
    )
    second.train()
    assert_same_model(first.model, second.model)
    rates = {
        group["lr"] for optimizer in first.optimizers.values() for group in optimizer.param_groups
    }
    assert rates == {second.optimizer.param_groups[0]["lr"]}


class Colouring(AdversarialTrainer):
    """Two layers, with an optimizer for each or one for both."""

    def __init__(self, output: Path, has_two: bool) -> None:
        super().__init__(
            {
                "common": {
                    "device": "cpu",
                    "output_directory": str(output),
                    "experiment_name": "tiny",
                }
            }
        )
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))
        layers = [self.net[2], self.net[0]] if has_two else [self.net]
        for number, layer in enumerate(layers):
            setattr(self, f"opt_{number}", torch.optim.Adam(layer.parameters(), 0.01))
        photos = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        self.train_loader = DataLoader(TensorDataset(photos.mean(1, keepdim=True), photos), 4)
        self.chosen: Any = [self.opt_0, self.opt_1] if has_two else self.opt_0

    def on_epoch_start(self, **kwargs: Any) -> None:
        """Nothing."""

    def train_step(self, x: Any, y: Any, idx: int, **kwargs: Any) -> None:
        self.update(nn.functional.l1_loss(self.net(x), y), self.chosen)

    def on_epoch_end(self, **kwargs: Any) -> None:
        """Nothing."""


def test_the_adversarial_interface_updates_a_list_of_optimizers_with_one_loss(tmp_path):
    trainers = [Colouring(tmp_path / str(has_two), has_two) for has_two in (True, False)]
    for trainer in trainers:
        for epoch in range(2):
            trainer.train_paired(epoch)
    assert_same_model(trainers[0].net, trainers[1].net)
