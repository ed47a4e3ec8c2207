"""Transfer learning: a network that knows digits learns from 30 labels which of them are even.

python transfer.py [--epochs 40]
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from loopwright import Trainer, seed_everything
from loopwright.callbacks import Freeze, GroupedOptimizer
from loopwright.initializers import FromCheckpoint


class Net(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def load() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images, labels = (
        torch.tensor(digits.images, dtype=torch.float32)[order],
        torch.tensor(digits.target)[order],
    )
    return images.unsqueeze(1) / 16, labels


def train(
    run_dir: str, data: tuple[Tensor, Tensor], num_labels: int, epochs: int, *callbacks: object
) -> float:
    seed_everything(0)
    images, labels = data
    model = Net(num_classes=int(labels.max()) + 1)
    # the features learn more slowly than the head
    optimizer = GroupedOptimizer(
        torch.optim.AdamW, lr=3e-3, modifiers={"features": {"lr_scale": 0.3}}
    )
    trainer = Trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        metrics="accuracy",
        callbacks=callbacks,
        run_dir=run_dir,
    )
    history = trainer.train(
        (images[:num_labels], labels[:num_labels]),
        num_epochs=epochs,
        eval_data=(images[1000:], labels[1000:]),
        batch_size=8,
    )
    history.plot(f"{run_dir}/curves.png")
    return history.last("eval_accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    epochs = parser.parse_args().epochs
    images, digits = load()
    is_even = (images, (digits % 2 == 0).long())
    train("runs/digits", (images, digits), 1000, epochs)
    scratch = train("runs/from-scratch", is_even, 30, epochs)
    transferred = train(
        "runs/transferred",
        is_even,
        30,
        epochs,
        FromCheckpoint("runs/digits", reinit=["head"]),  # all weights but those of the head
        Freeze("features", until_epoch=epochs // 2),  # first the new head alone, then everything
    )
    print(
        f"Even or odd, from 30 labels: {scratch:.1%} from scratch, {transferred:.1%} with "
        "features of digits."
    )


if __name__ == "__main__":
    main()
