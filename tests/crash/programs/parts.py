"""What the crash programs train: a model with dropout and batch norm, and data that draws from
every generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from .killing import happens

NUM_SAMPLES = 23
BATCH_SIZE = 3


class Net(nn.Sequential):
    """A small classifier; every forward pass is a moment at which it may be over."""

    def __init__(self) -> None:
        layers = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 3)
        super().__init__(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        happens("step" if self.training else "eval")
        return super().forward(inputs)


def build_net() -> Net:
    torch.manual_seed(1)
    return Net()


def points(count: int, seed: int = 7) -> TensorDataset:
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())


def noise() -> Tensor:
    """Randomness of three kinds."""
    return torch.randn(6) * 0.1 + random.gauss(0, 0.1) + float(np.random.normal(0, 0.1))


class Augmented(Dataset[Any]):
    """Samples with noise."""

    def __init__(self, count: int = NUM_SAMPLES) -> None:
        self.points = points(count)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.points[index]
        inputs = inputs + noise()
        happens("sample")  # when the generators have moved
        return inputs, target


class Streamed(IterableDataset[Any]):
    """Samples with noise as a stream that knows its position and goes on where the last epoch
    ended."""

    def __init__(self, count: int = NUM_SAMPLES) -> None:
        self.points = points(3 * count + 1)
        self.count = count
        self.position = self.num_given = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.num_given < self.count:
            inputs, target = self.points[self.position % len(self.points)]
            self.position += 1
            self.num_given += 1
            yield inputs + noise(), target
        self.num_given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "num_given": self.num_given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.num_given = state["position"], state["num_given"]
