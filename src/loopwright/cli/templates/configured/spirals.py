"""The classes that `run.yaml` names: the model, the data and the loss. Replace them with your
own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig


class Net(nn.Module):
    """Which of two spirals a point is on."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, point: Tensor) -> Tensor:
        scores: Tensor = self.layers(point)
        return scores


class Spirals(Dataset[dict[str, Tensor]]):
    """Points on two spirals around each other, with some noise."""

    def __init__(self, count: int, seed: int, noise: float = 0.02) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.label = torch.arange(count) % 2
        radius = torch.rand(count, generator=generator).sqrt()
        angle = 3 * math.pi * radius + math.pi * self.label
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        self.points = points + noise * torch.randn(count, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"point": self.points[index], "label": self.label[index]}


class SpiralConfig(BaseTrainerConfig):
    """Settings of your own, which stand beside the others under `trainer:`."""

    label_smoothing: float = 0.0


class SpiralTrainer(BaseTrainer):
    """Computes the loss of what the model gave; everything else is in `run.yaml`."""

    def __init__(self, trainer_config: SpiralConfig, **deps: Any) -> None:
        super().__init__(trainer_config, **deps)
        self.label_smoothing = trainer_config.label_smoothing

    def loss_compute(self, forward_output: Tensor, targets: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(
            forward_output, targets["label"], label_smoothing=self.label_smoothing
        )
