"""A variational autoencoder of handwritten digits, with a loss of two named parts.

python vae.py [--epochs 40]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from loopwright import Callback, Trainer, seed_everything
from loopwright.callbacks import EarlyStopping


class VAE(nn.Module):
    def __init__(self, size: int = 64, hidden: int = 128, code: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 2 * code)
        )
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


class VAETrainer(Trainer):
    def split_batch(self, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0], batch[0]  # the images are their own targets

    def compute_loss(
        self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor
    ) -> dict[str, Tensor]:
        logits, mean, log_variance = outputs
        reconstruction = (
            F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1).mean()
        )
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        # their sum is minimised
        return {
            "reconstruction": reconstruction,
            "divergence": divergence,
        }


class Pictures(Callback):
    """Records digits that the decoder makes of random codes."""

    def on_epoch_end(self, trainer: Trainer, metrics: object) -> None:
        codes = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).to(
            trainer.runtime.device
        )
        with torch.no_grad():
            trainer.log_images("drawn", trainer.model.decoder(codes).sigmoid().view(-1, 1, 8, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    images = images[torch.randperm(len(images))]
    trainer = VAETrainer(
        VAE(),
        partial(torch.optim.Adam, lr=2e-3),
        callbacks=[Pictures(), EarlyStopping("eval_loss", patience=5)],
        run_dir="runs/vae",
    )
    history = trainer.train(
        images[:1400], num_epochs=epochs, eval_data=images[1400:], batch_size=64
    )
    history.plot("runs/vae/curves.png")
    print(
        f"Loss {history.last('eval_loss'):.2f} = reconstruction "
        f"{history.last('eval_reconstruction'):.2f} + divergence "
        f"{history.last('eval_divergence'):.2f} (in nats, on 397 unseen digits)"
    )
    print("Curves: runs/vae/curves.png. Drawn digits: loopwright ui")


if __name__ == "__main__":
    main()
