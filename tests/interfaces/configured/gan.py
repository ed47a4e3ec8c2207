"""Two models that are trained against each other, as a user of the configured interface writes
them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loopwright.interfaces.configured import BaseTrainer, TrainerResult


class Pairs(Dataset):
    """Noise, and points to imitate."""

    def __init__(self, n: int = 32, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.z, self.x = (
            torch.randn(n, 4, generator=generator),
            torch.randn(n, 2, generator=generator),
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"z": self.z[index], "x": self.x[index]}


class Generator(nn.Sequential):
    def __init__(self, width: int = 8) -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


class Discriminator(nn.Sequential):
    def __init__(self, width: int = 8) -> None:
        super().__init__(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))


class Gan(BaseTrainer):
    """One update of the discriminator, then one of the generator."""

    def discriminate(self, batch: Any, model: Any) -> tuple[Tensor, Tensor]:
        fake = model["generator"](batch["z"])
        real, false = model["discriminator"](batch["x"]), model["discriminator"](fake.detach())
        return fake, nn.functional.softplus(-real).mean() + nn.functional.softplus(false).mean()

    def train_step(self, batch: Any, model: Any) -> TrainerResult:
        fake, d_loss = self.discriminate(batch, model)
        self.update(d_loss, "discriminator")
        g_loss = nn.functional.softplus(-model["discriminator"](fake)).mean()
        self.update(g_loss, "generator")
        return TrainerResult(g_loss + d_loss, {"g": g_loss, "d": d_loss})

    def eval_step(self, batch: Any, model: Any) -> TrainerResult:
        fake, d_loss = self.discriminate(batch, model)
        g_loss = nn.functional.softplus(-model["discriminator"](fake)).mean()
        return TrainerResult(g_loss + d_loss, {"g": g_loss, "d": d_loss})

    def predict_step(self, batch: Any, model: Any) -> Tensor:
        return model["generator"](batch["z"])


class Together(Gan):
    """Both by one loss and one optimizer."""

    def train_step(self, batch: Any, model: Any) -> TrainerResult:
        loss = (model["generator"](batch["z"]) - batch["x"]).square().mean()
        return TrainerResult(loss + 0.1 * model["discriminator"](batch["x"]).square().mean())

    eval_step = BaseTrainer.eval_step


class Bare(Gan):
    """Only trains."""

    eval_step = BaseTrainer.eval_step
    predict_step = BaseTrainer.predict_step
