"""Learn which of two spirals a point is on: pass data sets, override stages. `python train.py`"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

from loopwright.interfaces.lifecycle import (
    EarlyStoppingCallback,
    PrintMetricsCallback,
    PrintProgressCallback,
    SaveBestModelCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerPlaceholderValues,
)


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
    """Counts right answers during evaluation; every other stage is as it ships."""

    def eval_epoch_start(self) -> None:
        super().eval_epoch_start()
        self.num_right = 0
        self.num_seen = 0

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.num_right += int((output["model_outputs"].argmax(dim=1) == batch[1]).sum())
        self.num_seen += output["batch_size"]
        return output

    def eval_epoch_end(self) -> None:
        super().eval_epoch_end()
        self.run_history.update_metric("accuracy", self.num_right / self.num_seen)


def main() -> None:
    torch.manual_seed(0)
    model = build_model()
    trainer = SpiralTrainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        callbacks=(
            TerminateOnNaNCallback,
            PrintProgressCallback,
            PrintMetricsCallback,
            SaveBestModelCallback(save_path="checkpoints/best_model"),
            EarlyStoppingCallback(early_stopping_patience=10),
        ),
    )
    updates: Any = (
        TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    )
    trainer.train(
        spirals(2000, seed=1),
        num_epochs=20,
        eval_dataset=spirals(500, seed=2),
        per_device_batch_size=50,
        create_scheduler_fn=partial(OneCycleLR, max_lr=1e-2, total_steps=updates),
    )
    print(
        "Accuracy on points it has not seen: "
        f"{trainer.run_history.get_latest_metric('accuracy'):.1%}"
    )


if __name__ == "__main__":
    main()
