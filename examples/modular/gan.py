"""A GAN that learns eight points on a circle: the discriminator takes every update, the generator
every second.

python gan.py --epochs 100 --run-dir runs/gan     (kill it and start it again: it continues exactly
there)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig


@dataclass(kw_only=True)
class GANConfig(DreamTrainerConfig):
    g_lr: float = 1e-3
    d_lr: float = 4e-3
    train_batch_size: int = 128
    updates_per_generator_update: int = 2
    num_points: int = 2048


def circle(num_points: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    angles = torch.randint(8, (num_points,), generator=generator) * (torch.pi / 4)
    centres = torch.stack([angles.cos(), angles.sin()], dim=1)
    return centres + 0.05 * torch.randn(num_points, 2, generator=generator)


class GAN(DreamTrainer):
    config: GANConfig

    def configure_models(self) -> None:
        self.generator = nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)
        )

    def configure_optimizers(self) -> None:
        self.g_optimizer = torch.optim.Adam(
            self.generator.parameters(), self.config.g_lr, betas=(0.5, 0.9)
        )
        self.d_optimizer = torch.optim.Adam(
            self.discriminator.parameters(), self.config.d_lr, betas=(0.5, 0.9)
        )

    def configure_dataloaders(self) -> tuple[Any, Any]:
        points = TensorDataset(circle(self.config.num_points))
        return DataLoader(points, batch_size=self.config.train_batch_size, shuffle=True), None

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        (real,) = batch
        fake = self.generator(torch.randn(len(real), 4, device=self.device))
        d_loss = (
            softplus(-self.discriminator(real)).mean()
            + softplus(self.discriminator(fake.detach())).mean()
        )
        self.backward(d_loss)
        self.step(self.d_optimizer)
        metrics = {"d_loss": d_loss}
        if self.global_step % self.config.updates_per_generator_update == 0:
            metrics["g_loss"] = softplus(-self.discriminator(fake)).mean()
            self.backward(metrics["g_loss"])  # what this leaves in the discriminator is dropped
            self.step(self.g_optimizer)
        return metrics


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--run-dir")
    options = parser.parse_args()
    trainer = GAN(GANConfig(n_epochs=options.epochs, run_dir=options.run_dir))
    trainer.fit()
    with torch.no_grad():
        made = trainer.generator(torch.randn(1000, 4, device=trainer.device)).cpu()
    distances = torch.cdist(made, circle(1000)).min(dim=1).values
    print(
        f"generated points: {(distances < 0.1).float().mean():.0%} are within 0.1 of a real one "
        "(gan.png)"
    )
    figure, axes = plt.subplots(figsize=(5, 5))
    for points, label in ((circle(1000), "real"), (made, "generated")):
        axes.scatter(*points.T.numpy(), s=4, label=label)
    axes.legend()
    figure.savefig("gan.png")


if __name__ == "__main__":
    main()
