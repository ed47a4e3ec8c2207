"""Classify digits with random shifts: the augmentation of each sample is the same whatever happens
to the run.

python augmentation.py [--epochs 40]
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Trainer, seed_everything
from loopwright.callbacks import BestModel
from loopwright.schedules import WarmupCosine


class Digits(Dataset[tuple[Tensor, int]]):
    """Digits of 8 x 8 pixels; where `is_shifted`, each is moved by up to a pixel, differently in
    every epoch."""

    def __init__(self, part: slice, is_shifted: bool) -> None:
        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
        self.images = torch.tensor(digits.images, dtype=torch.float32)[order][part] / 16
        self.labels = torch.tensor(digits.target)[order][part].tolist()
        self.is_shifted = is_shifted

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.is_shifted:  # any generator will do: Loopwright seeds them for each sample
            down, right = torch.randint(3, (2,)).tolist()
            image = nn.functional.pad(image, (1, 1, 1, 1))[down : down + 8, right : right + 8]
        return image.unsqueeze(0), self.labels[index]


def train(is_augmented: bool, epochs: int, run_dir: str) -> float:
    seed_everything(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, 10),
    )
    trainer = Trainer(
        model,
        partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.05),
        nn.CrossEntropyLoss(label_smoothing=0.05),
        scheduler=WarmupCosine(warmup=0.1),
        metrics="accuracy",
        callbacks=[BestModel("eval_accuracy")],
        run_dir=run_dir,
    )
    # few training images; those of the evaluation are shifted, as a camera would
    train_data, eval_data = Digits(slice(0, 200), is_augmented), Digits(slice(200, None), True)
    history = trainer.train(train_data, num_epochs=epochs, eval_data=eval_data, batch_size=32)
    history.plot(f"{run_dir}/curves.png")
    return max(history["eval_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    plain = train(False, epochs, "runs/plain")
    augmented = train(True, epochs, "runs/augmented")
    print(
        f"Best accuracy on 1,597 shifted images: {plain:.1%} trained without shifts, "
        f"{augmented:.1%} with them."
    )
    print("Curves: runs/plain/curves.png, runs/augmented/curves.png")


if __name__ == "__main__":
    main()
