"""Loaders, an optimizer and the document's classifier, for the tests of the simple interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.simple import Trainer
from tests.loops import build_linear

cross_entropy = nn.functional.cross_entropy


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def build_trainer(
    kind: type[Trainer] = Trainer,
    *,
    net: Callable[[], nn.Module] = build_linear,
    loss_fn: Any = cross_entropy,
    **options: Any,
) -> Any:
    """A trainer of a new model with Adam."""
    model = net()
    return kind(model, adam(model), loss_fn, **options)


def shuffled(points: TensorDataset) -> DataLoader[Any]:
    return DataLoader(points, batch_size=8, shuffle=True)


def in_order(points: TensorDataset) -> DataLoader[Any]:
    return DataLoader(points, batch_size=8)


def saved_in(folder: Path) -> list[Path]:
    """The checkpoints in a `save_dir`, without the record of the run beside them."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.name not in (".lock", "run.json", "metrics.sqlite")
    )


class AccuracyTrainer(Trainer):
    """The document's classifier, in words of our own: batch means of batch accuracies, and the mode
    left behind."""

    def eval_step(self, batch: Any) -> dict[str, float]:
        inputs, targets = self._prepare_batch(batch)
        outputs = self._forward_pass(inputs)
        right = (outputs.argmax(1) == targets).sum().item()
        return {
            "loss": self._compute_loss(outputs, targets).item(),
            "accuracy": right / targets.size(0),
        }

    def evaluate(self, dataloader: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            results = [self.eval_step(batch) for batch in dataloader]
        return {name: sum(r[name] for r in results) / len(results) for name in ("loss", "accuracy")}
