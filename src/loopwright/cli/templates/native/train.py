"""Learn which of two spirals a point is on. `python train.py` trains, and resumes where it
stopped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.callbacks import EarlyStopping


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


class SpiralTrainer(Trainer):
    """The trainer as it is would do; this adds a metric. Other methods to override: train_step,
    compute_loss, ..."""

    def eval_step(self, batch: Any) -> dict[str, Tensor]:
        points, labels = batch
        scores = self.model(points)
        right = (scores.argmax(dim=1) == labels).float()
        return {"loss": nn.functional.cross_entropy(scores, labels), "accuracy": right.mean()}


def main() -> None:
    torch.manual_seed(0)
    model = build_model()
    trainer = SpiralTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        nn.CrossEntropyLoss(),
        callbacks=[EarlyStopping("eval_loss", patience=10)],
        run_dir="runs/spirals",
    )
    history = trainer.train(
        spirals(2000, seed=1), num_epochs=20, eval_data=spirals(500, seed=2), batch_size=50
    )
    print(f"Accuracy on points it has not seen: {history['eval_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main()
