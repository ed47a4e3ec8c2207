"""Optimizers that a subclass has beside `optimizer` and steps by itself, and gradients that must
last for a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright.interfaces.lifecycle import SaveTrainingStateCallback, Trainer, TrainerCallback
from tests.mistakes import raises

from ...loops import assert_same_model
from .runs import head

IN_ORDER = {"train_dataloader_kwargs": {"shuffle": False}}


def two_layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class TwoOptimizers(Trainer):
    """One loss, whose gradients go to an optimizer for each layer."""

    def __init__(
        self, model: nn.Sequential, loss_func: Any, optimizer: Any, **options: Any
    ) -> None:
        super().__init__(model, loss_func, optimizer, **options)
        self.second = torch.optim.Adam(model[2].parameters(), lr=0.01)

    def optimizer_step(self) -> None:
        self.optimizer.step()
        self.second.step()

    def optimizer_zero_grad(self) -> None:
        self.optimizer.zero_grad()
        self.second.zero_grad()


def run(
    points: TensorDataset,
    num_epochs: int = 2,
    callbacks: Any = (),
    precision: str = "no",
    **options: Any,
) -> Any:
    model = two_layers()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    trainer = TwoOptimizers(
        model, nn.CrossEntropyLoss(), first, callbacks=callbacks, mixed_precision=precision
    )
    trainer.train(points, num_epochs, **IN_ORDER, **options)
    return trainer


def by_hand(points: TensorDataset, accumulate: int) -> nn.Module:
    model = two_layers()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[2].parameters(), lr=0.01),
    ]
    for _ in range(2):
        for number, (inputs, targets) in enumerate(DataLoader(points, 8), 1):
            (nn.functional.cross_entropy(model(inputs), targets) / accumulate).backward()
            for optimizer in optimizers if number % accumulate == 0 else ():
                optimizer.step()
                optimizer.zero_grad()
    return model


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_optimizers_of_one_loss_are_the_loop_that_was_written(
    points: TensorDataset, accumulate: int
) -> None:
    points = head(points, 32)
    trainer = run(points, gradient_accumulation_steps=accumulate)
    assert_same_model(trainer.model, by_hand(points, accumulate))


def test_training_state_contains_a_second_optimizer(points: TensorDataset, tmp_path: Path) -> None:
    saving = SaveTrainingStateCallback(tmp_path, save_every_n_epochs=1)
    run(points, 1, [saving])
    assert_same_model(run(points, 2, resume_from=saving.latest).model, run(points, 2).model)


def test_second_optimizer_in_fp16_is_refused(points: TensorDataset) -> None:
    with raises("second-optimizer", "self.second"):
        run(points, precision="fp16")


# Gradients of a window


class ZeroesInForward(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        self.optimizer.zero_grad()
        return super().calculate_train_batch_loss(batch)


class ZeroesInBackward(Trainer):
    def backward_step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()


class ClipsBefore(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        if any(param.grad is not None for param in self.model.parameters()):  # of an earlier batch
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        return super().calculate_train_batch_loss(batch)


class Zeroing(TrainerCallback):
    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "callbacks"),
    [(ZeroesInForward, []), (ZeroesInBackward, []), (ClipsBefore, []), (Trainer, [Zeroing()])],
)
def test_gradients_that_a_window_would_lose_are_refused(
    kind: type[Trainer], callbacks: list[TrainerCallback], points: TensorDataset
) -> None:
    model = two_layers()
    trainer = kind(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=0.1),
        callbacks=callbacks,
    )
    with raises("gradients-lost"):
        trainer.train(points, 1, gradient_accumulation_steps=2)
