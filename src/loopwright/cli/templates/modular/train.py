"""A generator learns to put points on a circle, against a discriminator that tells them from real
ones.

`python train.py` trains, and resumes where it stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig


@dataclass(kw_only=True)
class CircleConfig(DreamTrainerConfig):
    """The settings, with some of your own."""

    noise_size: int = 4
    generator_rate: float = 1e-3
    discriminator_rate: float = 4e-3


def circle(count: int, seed: int) -> TensorDataset:
    """Points on a circle, with some noise: put your own data here."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    return TensorDataset(points + 0.05 * torch.randn(count, 2, generator=generator))


class CircleTrainer(DreamTrainer):
    """Two models, each with its optimizer; whatever is assigned to self is saved and restored under
    its name."""

    config: CircleConfig

    def configure_models(self) -> None:
        self.generator = nn.Sequential(
            nn.Linear(self.config.noise_size, 64), nn.ReLU(), nn.Linear(64, 2)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def configure_optimizers(self) -> None:
        self.g_optimizer = torch.optim.Adam(
            self.generator.parameters(), self.config.generator_rate, (0.5, 0.9)
        )
        self.d_optimizer = torch.optim.Adam(
            self.discriminator.parameters(), self.config.discriminator_rate, (0.5, 0.9)
        )

    def configure_dataloaders(self) -> tuple[Any, Any]:
        train = DataLoader(circle(2000, seed=1), self.config.train_batch_size, shuffle=True)
        return train, DataLoader(circle(500, seed=2), self.config.val_batch_size)

    def make_points(self, count: int) -> Tensor:
        points: Tensor = self.generator(
            torch.randn(count, self.config.noise_size, device=self.device)
        )
        return points

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        (real,) = batch
        fake = self.make_points(len(real))
        d_loss = (
            softplus(-self.discriminator(real)).mean()
            + softplus(self.discriminator(fake.detach())).mean()
        )
        self.backward(d_loss)
        self.step(self.d_optimizer)
        g_loss = softplus(-self.discriminator(fake)).mean()
        self.backward(g_loss)  # what this leaves in the discriminator is dropped
        self.step(self.g_optimizer)
        return {"d_loss": d_loss, "g_loss": g_loss}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """How far from the circle the generated points are."""
        (real,) = batch
        return {"distance": (self.make_points(len(real)).norm(dim=1) - 1).abs().mean()}


def main() -> None:
    trainer = CircleTrainer(
        CircleConfig(n_epochs=20, train_batch_size=100, val_batch_size=100, run_dir="runs/circle")
    )
    trainer.fit()
    with torch.no_grad():
        distance = (trainer.make_points(1000).norm(dim=1) - 1).abs().mean().item()
    print(f"Generated points are {distance:.2f} from the circle on average")


if __name__ == "__main__":
    main()
