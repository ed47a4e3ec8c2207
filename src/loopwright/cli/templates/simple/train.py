"""Learn which of two spirals a point is on, with a model, an optimizer, a loss and loaders.
`python train.py`"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.simple import Trainer


def spirals(count: int, seed: int) -> TensorDataset:
    """Points on two spirals around each other, with some noise: put your own data here."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 2
    radius = torch.rand(count, generator=generator).sqrt()
    angle = 3 * math.pi * radius + math.pi * label
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(count, 2, generator=generator), label)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


def accuracy(model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(points).argmax(dim=1) == labels for points, labels in loader])
    return right.float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(spirals(2000, seed=1), batch_size=50, shuffle=True)
    eval_loader = DataLoader(spirals(500, seed=2), batch_size=100)
    model = build_model()
    trainer = Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), nn.CrossEntropyLoss(), device="cpu"
    )
    trainer.train(
        train_loader,
        num_epochs=20,
        eval_dataloader=eval_loader,
        save_dir="checkpoints",
        save_freq=10,
        early_stopping_patience=10,
    )
    trainer.load_checkpoint("checkpoints/best_model", load_optimizer=False)
    print(f"Accuracy on points it has not seen: {accuracy(model, eval_loader):.1%}")


if __name__ == "__main__":
    main()
