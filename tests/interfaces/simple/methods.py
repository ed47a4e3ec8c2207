"""Methods of the simple interface replaced whole, and the same training written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.simple import Trainer
from tests.loops import assert_same_model, assert_same_optimizer, build_net

from .programs import adam, cross_entropy


def loader(points: TensorDataset) -> DataLoader[Any]:
    return DataLoader(points, batch_size=8)


def train_by_hand(
    points: TensorDataset, epochs: int, *, clip: float | None = None, every: int = 1, seed: int = 1
) -> tuple[nn.Module, Optimizer, StepLR, list[float]]:
    """An ordinary loop with an optimizer, a scheduler stepped after each epoch, and gradients of
    `every` batches."""
    model = build_net(seed, dropout=0.0)
    optimizer = adam(model)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    losses, num_batches = [], 0
    for _ in range(epochs):
        for inputs, targets in loader(points):
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            num_batches += 1
            if num_batches % every == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        scheduler.step()
    return model, optimizer, scheduler, losses


def build(kind: type[Trainer], config: Any = None, seed: int = 1) -> Trainer:
    model = build_net(seed, dropout=0.0)
    optimizer = adam(model)
    return kind(model, optimizer, cross_entropy, config, scheduler=StepLR(optimizer, 1, gamma=0.5))


def assert_same(
    trainer: Trainer, by_hand: tuple[nn.Module, Optimizer, StepLR, list[float]]
) -> None:
    model, optimizer, scheduler, _ = by_hand
    assert trainer.optimizer is not None
    assert_same_model(trainer.model, model)
    assert_same_optimizer(trainer.optimizer, optimizer)
    assert trainer.scheduler.last_epoch == scheduler.last_epoch


class OwnStep(Trainer):
    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        inputs, targets = batch[0].to(self.device), batch[1].to(self.device)
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(inputs), targets)  # type: ignore[misc]
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return {"loss": loss.item()}


class AccumulatingStep(Trainer):
    """Gradients of two batches an update, as the document says to implement it."""

    num_batches = 0

    def train_step(self, batch: Any) -> dict[str, float]:
        assert self.optimizer is not None
        inputs, targets = self._prepare_batch(batch)
        loss = self._compute_loss(self._forward_pass(inputs), targets)
        loss.backward()
        self.num_batches += 1
        if self.num_batches % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"loss": loss.item()}


class OwnEvalStep(Trainer):
    def eval_step(self, batch: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(batch[0])
        return {
            "loss": cross_entropy(outputs, batch[1]).item(),
            "right": (outputs.argmax(1) == batch[1]).sum().item(),
        }


class OwnEpoch(Trainer):
    """An epoch as one writes it, its scheduler included."""

    def train_epoch(
        self, train_dataloader: Any, eval_dataloader: Any = None, epoch: int = 0
    ) -> dict[str, float]:
        assert self.optimizer is not None
        self.model.train()
        total = 0.0
        for inputs, targets in train_dataloader:
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()
            total += loss.item()
        self.scheduler.step()
        metrics = {"train_loss": total / len(train_dataloader)}
        if eval_dataloader is not None:
            metrics |= {
                f"eval_{name}": value for name, value in self.evaluate(eval_dataloader).items()
            }
        return metrics


class OwnEvaluate(Trainer):
    def evaluate(self, dataloader: Any) -> dict[str, float]:
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for inputs, targets in dataloader:
                total += cross_entropy(self.model(inputs), targets).item()
                count += 1
        return {"loss": total / count}


class OwnTrain(Trainer):
    def train(self, train_dataloader: Any, num_epochs: int, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        history: dict[str, list[float]] = {}
        for epoch in range(num_epochs):
            for name, value in self.train_epoch(train_dataloader, epoch=epoch).items():
                history.setdefault(name, []).append(value)
        return history


class OwnParts(Trainer):
    """The three parts of a step."""

    def _prepare_batch(self, batch: Any) -> tuple[Any, Any]:
        inputs, targets = batch
        return inputs.to(self.device), targets.to(self.device)

    def _forward_pass(self, inputs: Any) -> Any:
        return self.model(inputs)

    def _compute_loss(self, outputs: Any, targets: Any) -> Tensor:
        return cross_entropy(outputs, targets)
