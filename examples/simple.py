"""Classify digits with the simple interface: a model, an optimizer, a loss and loaders.

python simple.py [--epochs 10]     (stop it with Ctrl-C and start it again: it continues)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.simple import Trainer

FOLDER = Path("runs/simple")


class Classifier(Trainer):
    """Measures the accuracy beside the loss."""

    def eval_step(self, batch: list[Tensor]) -> dict[str, float]:
        inputs, targets = self._prepare_batch(batch)
        outputs = self._forward_pass(inputs)
        accuracy = (outputs.argmax(1) == targets).float().mean()
        return {"loss": self._compute_loss(outputs, targets).item(), "accuracy": accuracy.item()}


def build_loaders() -> tuple[DataLoader[list[Tensor]], DataLoader[list[Tensor]]]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    data = TensorDataset(images[order], torch.tensor(digits.target)[order])
    train, test = (
        torch.utils.data.Subset(data, range(1400)),
        torch.utils.data.Subset(data, range(1400, len(data))),
    )
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=200)


def show(trainer: Trainer, epoch: int, metrics: dict[str, float]) -> None:
    print(
        f"          learning rate of epoch {epoch + 2}: "
        f"{trainer.optimizer.param_groups[0]['lr']:.5f}"
    )


@torch.no_grad()
def draw_confusion(trainer: Trainer, loader: DataLoader[list[Tensor]], path: Path) -> None:
    """A table of the digits that were shown, by the digits that the model saw."""
    counts = torch.zeros(10, 10)
    trainer.model.eval()
    for images, labels in loader:
        seen = trainer.model(images.to(trainer.device)).argmax(1).cpu()
        counts.index_put_((labels, seen), torch.ones(len(labels)), accumulate=True)
    figure, axes = plt.subplots(figsize=(5, 5))
    axes.imshow(counts.numpy(), cmap="Blues")
    for row in range(10):
        for column in range(10):
            axes.text(
                column, row, f"{counts[row, column]:.0f}", ha="center", va="center", fontsize=7
            )
    axes.set(xlabel="predicted", ylabel="true", xticks=range(10), yticks=range(10))
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    train_loader, test_loader = build_loaders()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
    ).append(nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    settings = {"training": {"max_grad_norm": 1.0}}
    trainer = Classifier(model, optimizer, nn.CrossEntropyLoss(), settings, scheduler=scheduler)

    saved = sorted(FOLDER.glob("checkpoint_*"), key=lambda path: path.stat().st_mtime)
    done = trainer.load_checkpoint(saved[-1])["num_epochs"] if saved else 0
    if done < epochs:
        trainer.train(
            train_loader,
            epochs - done,
            test_loader,
            save_dir=FOLDER,
            best_model_metric="eval_accuracy",
            early_stopping_patience=5,
            callbacks=[show],
        )
    trainer.load_checkpoint(FOLDER / "best_model", load_optimizer=False)
    draw_confusion(trainer, test_loader, FOLDER / "confusion.png")
    print(
        f"Best model: accuracy {trainer.evaluate(test_loader)['accuracy']:.1%} "
        f"({FOLDER / 'confusion.png'})"
    )


if __name__ == "__main__":
    main()
