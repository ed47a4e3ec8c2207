"""A GAN draws handwritten digits: two networks, each with its own optimizer and its own loss.

python gan.py [--epochs 60]
"""

from __future__ import annotations

import argparse
from functools import partial

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from loopwright import Trainer, seed_everything
from loopwright.callbacks import EMA

NOISE = 16


class GAN(Trainer):
    def train_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        (real,) = batch
        fake = self.generator(torch.randn(len(real), NOISE, device=real.device))

        d_loss = (
            softplus(-self.discriminator(real)).mean()
            + softplus(self.discriminator(fake.detach())).mean()
        )
        self.update(d_loss, "discriminator")

        g_loss = softplus(-self.discriminator(fake)).mean()
        self.update(g_loss, "generator")  # its gradients reach the generator only
        return {"g_loss": g_loss, "d_loss": d_loss}

    def on_train_epoch_end(self) -> None:
        self.log_images("drawn", self.draw(16), value_range=(-1, 1))

    @torch.no_grad()
    def draw(self, count: int) -> Tensor:
        # the same in every epoch
        noise = torch.randn(count, NOISE, generator=torch.Generator().manual_seed(0))
        self.generator.eval()
        images = self.generator(noise.to(self.runtime.device)).view(-1, 1, 8, 8).cpu()
        self.generator.train()
        return images


def load_images() -> Tensor:
    return torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1  # from -1 to 1


def build_models() -> dict[str, nn.Module]:
    generator = nn.Sequential(
        nn.Linear(NOISE, 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Linear(64, 128),
        nn.LeakyReLU(0.2),
        nn.Dropout(0.3),
        nn.Linear(128, 64),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 1),
    )
    return {"generator": generator, "discriminator": discriminator}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    images = load_images()
    adam = partial(torch.optim.Adam, lr=5e-4, betas=(0.5, 0.99))
    ema = EMA(0.99, model="generator")
    trainer = GAN(
        build_models(),
        {"generator": adam, "discriminator": adam},
        callbacks=[ema],
        run_dir="runs/gan",
    )
    history = trainer.train(images, num_epochs=epochs, batch_size=64)
    history.plot("runs/gan/curves.png")
    with ema.weights(trainer):  # the averaged weights in place of the last ones
        drawn = trainer.draw(256)
    grid = (
        pad(drawn[:40], (2, 2, 2, 2), value=-1).view(4, 10, 12, 12).transpose(1, 2).reshape(48, 120)
    )
    plt.imsave(
        "runs/gan/drawn.png",
        grid.repeat_interleave(8, 0).repeat_interleave(8, 1).numpy(),
        cmap="gray",
    )
    distance = torch.cdist(drawn.flatten(1), images).min(1).values.mean()
    others = torch.cdist(images[:256], images[256:]).min(1).values.mean()
    print(f"A drawn digit is {distance:.2f} from the nearest real one; a real digit {others:.2f}.")
    print("Drawn digits: runs/gan/drawn.png; epoch by epoch: loopwright ui runs")


if __name__ == "__main__":
    main()
