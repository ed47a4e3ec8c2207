"""Train a small CNN on scikit-learn's handwritten digits: a bar, an evaluation each epoch,
checkpoints, a picture.

Run it again: it sees that the run is finished. Stop it with Ctrl-C and run it again: it goes on
where it was.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """1797 images of 8 x 8 pixels; a fifth of them is held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run-dir", default="runs/digits", help="where metrics, checkpoints and the picture go"
    )
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()

    train_data, test_data = load_data()
    trainer = Trainer(
        build_model(),
        partial(torch.optim.AdamW, lr=2e-3),
        nn.CrossEntropyLoss(),
        metrics="accuracy",
        run_dir=options.run_dir,
    )
    history = trainer.train(
        train_data, num_epochs=options.epochs, eval_data=test_data, batch_size=64
    )

    picture = f"{trainer.run_dir}/curves.png"
    history.plot(picture)
    print(f"\nTest accuracy: {history.last('eval_accuracy'):.1%}")
    print(f"Curves:        {picture}")
    print(f"The run:       {trainer.run_dir} (metrics, checkpoints, the best model)")
    print(f"Next:          train longer with   python {sys.argv[0]} --epochs {2 * options.epochs}")
    print(f"               look inside with    loopwright show {trainer.run_dir}")


if __name__ == "__main__":
    main()
