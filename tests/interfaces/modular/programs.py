"""Trainers as document 003 shows them, on small data, and the same training written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.data.order import permutation
from loopwright.data.random import seed_everything
from loopwright.interfaces.modular import Callback, DreamTrainer, DreamTrainerConfig

from ...loops import build_net


def build_data(num_samples: int = 37) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(num_samples, 6, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())


@dataclass(kw_only=True)
class Config(DreamTrainerConfig):
    """Quiet, and with settings of its own, as the document's programs have them."""

    train_batch_size: int = 8
    val_batch_size: int = 8
    learning_rate: float = 0.01
    progress: str = "silent"
    g_lr: float = 0.01
    d_lr: float = 0.02


class MyTrainer(DreamTrainer):
    """The document's basic trainer."""

    def __init__(self, config: DreamTrainerConfig, model: nn.Module | None = None) -> None:
        super().__init__(config)
        self.model = build_net() if model is None else model
        self.criterion = nn.CrossEntropyLoss()

    def configure_models(self) -> None:
        pass

    def configure_optimizers(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
        )

    def configure_dataloaders(self) -> tuple[Any, Any]:
        train = DataLoader(
            build_data(),
            batch_size=self.config.train_batch_size,
            shuffle=True,
            num_workers=self.config.num_workers,
        )
        val = DataLoader(build_data(21), batch_size=self.config.val_batch_size, shuffle=False)
        return train, val

    def compute_accuracy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).double().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        with self.autocast():
            outputs = self.model(inputs)
            loss = self.criterion(outputs, targets)
        self.backward(loss)
        if self.config.gradient_clip_val is not None:
            self.clip_gradients(self.optimizer, max_norm=self.config.gradient_clip_val)
        return {"loss": loss, "accuracy": self.compute_accuracy(outputs, targets)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        outputs = self.model(inputs)
        loss = self.criterion(outputs, targets)
        return {"val_loss": loss, "val_accuracy": self.compute_accuracy(outputs, targets)}


class OwnLoop(MyTrainer):
    """The document's custom training loop, as it stands."""

    def training_loop(self) -> None:
        """Custom training loop"""
        for epoch in range(self.current_epoch, self.config.n_epochs):  # noqa: B007
            # Training
            self.model.train()
            for batch_idx, batch in enumerate(self.train_loader):
                # Custom training logic
                outputs = self.training_step(batch, batch_idx)

                # Custom logging
                self.log_metrics(outputs)

            # Validation
            if self.should_validate():
                self.validation_loop()


class OwnFiles(MyTrainer):
    """The document's own checkpoints."""

    def save_checkpoint(self, path: Any) -> None:
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.current_epoch,
            "config": self.config,
        }
        torch.save(checkpoint, path)

    def load_checkpoint(self, path: Any) -> None:
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.current_epoch = checkpoint["epoch"]


class Noting(Callback):
    """Notes events as they come."""

    def __init__(self) -> None:
        self.events: list[str] = []


def _noting(name: str) -> Any:
    def note(self: Noting, trainer: DreamTrainer, *args: Any) -> None:
        self.events.append(name.removeprefix("on_"))

    return note


for _name in [name for name in vars(Callback) if name.startswith("on_")]:
    setattr(Noting, _name, _noting(_name))


class Killed(BaseException):
    """Stands for SIGKILL: no handler that could save anything runs."""


class KillAt(Callback):
    """Ends the program at a batch, before anything that happens there."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_batch_start(self, trainer: DreamTrainer, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.update:
            raise Killed


def windows(
    num_samples: int, batch_size: int, accumulate: int, epochs: int, seed: int = 0
) -> Iterator[list[Tensor]]:
    """Indices of the batches of each update, in the order that the trainer promises."""
    for epoch in range(epochs):
        batches = list(permutation(seed, epoch, num_samples).split(batch_size))
        yield from (batches[at : at + accumulate] for at in range(0, len(batches), accumulate))


def by_hand(
    model: nn.Module,
    *,
    epochs: int,
    accumulate: int = 1,
    clip: float | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """What `MyTrainer` does, as one writes it without a trainer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    inputs, targets = build_data().tensors
    seed_everything(0)
    for window in windows(len(inputs), 8, accumulate, epochs):
        total = sum(len(batch) for batch in window)
        for batch in window:
            with nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
                loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            (loss if len(window) == 1 else loss / (total / len(batch))).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same(first: nn.Module, second: nn.Module) -> None:
    ours, theirs = first.state_dict(), second.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
