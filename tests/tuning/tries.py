"""Small trainers for the tests of `Trainer.tune`: few updates, and a clock that the tests set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Trainer
from tests.loops import build_net

cross_entropy = nn.functional.cross_entropy


CHEAP = ["batch_size", "precision", "threads"]


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A Python data set, which workers can read."""

    def __init__(self, number: int = 48) -> None:
        self.inputs = torch.randn(number, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], (self.inputs[index].sum() > 0).long()


def own_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def build(model: nn.Module | None = None, **options: Any) -> Trainer:
    model = build_net() if model is None else model
    options = {"optimizer": own_optimizer(model), "progress": "silent"} | options
    return Trainer(model, loss_fn=cross_entropy, **options)


def tried(tuning: Any) -> list[str]:
    return [row.label for row in tuning.rows]


class HandClock:
    """A clock that only training moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def trainer(self, *, per_step: float, per_sample: float, is_threaded: bool = False) -> Trainer:
        clock = self

        class Slow(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                seconds = per_step + per_sample * len(x)
                clock.now += seconds / (torch.get_num_threads() if is_threaded else 1)
                return super().forward(x)

        return build(Slow(6, 3))
