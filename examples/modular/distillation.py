"""A small student learns handwritten digits from a frozen teacher; its averaged weights are
evaluated beside it.

python distillation.py 15     (needs scikit-learn for the digits)
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax
from torch.utils.data import DataLoader, TensorDataset, random_split

from loopwright.callbacks import EMA
from loopwright.interfaces.modular import DreamTrainer, DreamTrainerConfig

TEMPERATURE = 3.0


def digits() -> TensorDataset:
    from sklearn.datasets import load_digits

    data = load_digits()
    return TensorDataset(
        torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    )


def build_net(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))


class Distillation(DreamTrainer):
    def __init__(
        self, config: DreamTrainerConfig, student: nn.Module, data: Any, teacher: nn.Module | None
    ) -> None:
        super().__init__(config)
        self.student, self.data = student, data
        self.teacher = None if teacher is None else teacher.requires_grad_(False).eval()

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=self.config.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=self.config.n_epochs
        )

    def configure_dataloaders(self) -> tuple[Any, Any]:
        train, held_out = random_split(self.data, [0.8, 0.2], torch.Generator().manual_seed(0))
        return DataLoader(train, self.config.train_batch_size, shuffle=True), DataLoader(
            held_out, 256
        )

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets = batch
        outputs = self.student(inputs)
        loss = cross_entropy(outputs, targets)
        if self.teacher is not None:
            with torch.no_grad():
                wanted = softmax(self.teacher(inputs) / TEMPERATURE, dim=1)
            loss = loss + TEMPERATURE**2 * kl_div(
                log_softmax(outputs / TEMPERATURE, 1), wanted, reduction="batchmean"
            )
        self.backward(loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        inputs, targets = batch
        return {"val_accuracy": (self.student(inputs).argmax(1) == targets).float().mean()}


def main() -> None:
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.manual_seed(0)
    data = digits()
    teacher = Distillation(
        DreamTrainerConfig(n_epochs=epochs, learning_rate=0.005, progress="silent"),
        build_net(256),
        data,
        None,
    )
    print(f"teacher: accuracy {teacher.fit().last('val_accuracy'):.3f}")
    ema = EMA(0.99, model="student")
    config = DreamTrainerConfig(
        n_epochs=epochs, learning_rate=0.005, gradient_clip_val=1.0, callbacks=[ema]
    )
    history = Distillation(config, build_net(16), data, teacher.student).fit()
    print(
        f"student: accuracy {history.last('val_accuracy'):.3f}, averaged "
        f"{history.last('ema_val_accuracy'):.3f}"
    )


if __name__ == "__main__":
    main()
