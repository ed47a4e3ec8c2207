"""A small model, its data and a trainer for them, as a user of the configured interface writes
them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright import Callback
from loopwright.interfaces.configured import BaseTrainer, BaseTrainerConfig

PROPERTIES = {"forward_properties": ["coordinates", "features"], "target_properties": ["labels"]}


class Points(Dataset):
    """Points with features and a label each, as dicts."""

    def __init__(self, n: int = 64, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.coordinates = torch.randn(n, 3, generator=generator)
        self.features = torch.randn(n, 2, generator=generator)
        self.labels = self.coordinates.sum(1) + self.features[:, 0]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "coordinates": self.coordinates[index],
            "features": self.features[index],
            "labels": self.labels[index],
        }

    def rows(self, indices: Tensor) -> dict[str, Tensor]:
        return {"coordinates": self.coordinates[indices], "features": self.features[indices]}


class Net(nn.Module):
    """Dropout, so that modes and randomness matter."""

    def __init__(self, width: int = 16, dropout: float = 0.25) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )

    def forward(self, coordinates: Tensor, features: Tensor) -> Tensor:
        return self.layers(torch.cat([coordinates, features], 1))[:, 0]


class CustomTrainerConfig(BaseTrainerConfig):
    weight: float = 0.5


class CustomTrainer(BaseTrainer):
    """Two named losses."""

    def __init__(self, trainer_config: CustomTrainerConfig, **kwargs: Any) -> None:
        super().__init__(trainer_config, **kwargs)
        self.weight = trainer_config.weight

    def loss_compute(self, forward_output: Tensor, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        error = forward_output - targets["labels"]
        return {"mse": (error**2).mean(), "mae": self.weight * error.abs().mean()}


class Seen(Callback):
    """The order of what happened, as much of it as the tests look at."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.epochs: list[dict[str, float]] = []
        self.labels: list[float] = []

    def on_train_step_end(self, trainer: Any, batch: Any, result: Any) -> None:
        self.results.append(result)
        self.labels += batch["labels"].tolist()

    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        self.epochs.append(dict(metrics))


def build_net(seed: int = 1, **options: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def build_trainer(kind: type[BaseTrainer] = CustomTrainer, **settings: Any) -> BaseTrainer:
    """A trainer with these settings, and with the dependencies among them that are no settings."""
    deps = {
        "model": build_net,
        "datasets": {"train": Points(), "test": Points(32, seed=1)},
        "optimizer": None,
        "scheduler": None,
        "run_dir": None,
        "seed": 0,
    }
    deps |= {name: settings.pop(name) for name in list(settings) if name in deps}
    if deps["model"] is build_net:
        deps["model"] = build_net()
    if not settings.keys() & {"max_epochs", "max_updates", "max_samples"}:
        settings["max_epochs"] = 1
    config = CustomTrainerConfig(**{"effective_batch_size": 8, **PROPERTIES, **settings})
    return kind(config, progress="silent", **deps)
