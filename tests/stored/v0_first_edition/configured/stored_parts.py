from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright.doors.configured import BaseTrainer, BaseTrainerConfig


class Points(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, step: int = 5) -> None:
        numbers = torch.arange(4 * count)
        self.points = ((numbers * step * (numbers + 3)) % 17 - 8).reshape(count, 4) / 8
        self.labels = (self.points.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"point": self.points[index], "label": self.labels[index]}


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width, bias=False), nn.BatchNorm1d(width), nn.Linear(width, 2))

    def forward(self, point: Tensor) -> Tensor:
        noise = torch.rand(4) / 8 if self.training else 0
        return self.layers(point + noise)


class PointsConfig(BaseTrainerConfig):
    smoothing: float = 0.0


class PointsTrainer(BaseTrainer):
    def __init__(self, trainer_config: PointsConfig, **deps: Any) -> None:
        super().__init__(trainer_config, **deps)
        self.smoothing = trainer_config.smoothing

    def loss_compute(self, forward_output: Tensor, targets: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(forward_output, targets["label"], label_smoothing=self.smoothing)
