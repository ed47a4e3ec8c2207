"""Contrastive learning: a network learns digits without labels, from pairs of altered images.

python contrastive.py [--epochs 40]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from loopwright import StepResult, Trainer, seed_everything
from loopwright.schedules import WarmupCosine


def alter(images: Tensor) -> Tensor:
    """Shift each image by up to a pixel, change its brightness, and add noise; on the device, for a
    whole batch."""
    padded = F.pad(images, (1, 1, 1, 1))
    rows, columns = torch.randint(3, (2, len(images)), device=images.device)
    window = torch.arange(8, device=images.device)
    rows, columns = rows[:, None] + window, columns[:, None] + window
    which = torch.arange(len(images), device=images.device)[:, None, None]
    shifted = padded[:, 0][which, rows[:, :, None], columns[:, None, :]][:, None]
    return shifted * (
        0.7 + 0.6 * torch.rand(len(images), 1, 1, 1, device=images.device)
    ) + 0.1 * torch.randn_like(images)


class SimCLR(Trainer):
    def contrast(self, images: Tensor) -> Tensor:
        """The loss by which the two versions of an image find each other among those of all
        images."""
        codes = F.normalize(self.model(torch.cat([alter(images), alter(images)])), dim=1)
        similarity = (codes @ codes.T / 0.2).fill_diagonal_(-1e4)
        return F.cross_entropy(
            similarity, torch.arange(len(codes), device=codes.device).roll(len(images))
        )

    def train_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        loss = self.contrast(batch[0])
        self.update(loss)
        return {"loss": loss}

    def eval_step(self, batch: list[Tensor]) -> StepResult:
        images, labels = batch
        nearest = (self.encode(images) @ self.known_codes.T).argmax(1)
        accuracy = (self.known_labels[nearest] == labels).float().mean()
        return StepResult(metrics={"neighbour_accuracy": accuracy})

    def encode(self, images: Tensor) -> Tensor:
        # without the two layers that only the loss needs
        return F.normalize(self.model[:-2](images), dim=1)

    def on_eval_start(self, data: object) -> None:
        images, self.known_labels = (tensor.to(self.runtime.device) for tensor in self.known)
        self.known_codes = self.encode(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    seed_everything(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    labels = torch.tensor(digits.target)[order]
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 32),
    )  # fmt: skip
    trainer = SimCLR(
        model,
        partial(torch.optim.AdamW, lr=2e-3),
        scheduler=WarmupCosine(),
        run_dir="runs/contrastive",
    )
    # the only labels, five for each digit; nothing is trained with them
    trainer.known = (
        images[:50],
        labels[:50],
    )
    before = trainer.evaluate((images[1400:], labels[1400:]))["neighbour_accuracy"]
    history = trainer.train(
        images[:1400], num_epochs=epochs, eval_data=(images[1400:], labels[1400:]), batch_size=128
    )
    history.plot("runs/contrastive/curves.png")
    after = history.last("eval_neighbour_accuracy")
    print(
        f"Accuracy of the nearest of 50 labelled digits: {before:.1%} before training, "
        f"{after:.1%} after it."
    )


if __name__ == "__main__":
    main()
