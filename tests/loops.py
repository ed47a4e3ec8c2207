"""Hand-written loops that the trainer is compared with, bit for bit, and the small things they
train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from loopwright.data.order import permutation
from loopwright.data.random import seed_everything


def build_net(seed: int = 1, dropout: float = 0.25) -> nn.Sequential:
    """A classifier of six numbers with batch norm and dropout, so that modes and randomness
    matter."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
    )


def build_linear(seed: int = 1) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def batches(
    data: TensorDataset, batch_size: int, epoch: int, seed: int = 0
) -> Iterator[list[Tensor]]:
    """The batches of an epoch in the order that the trainer promises."""
    for indices in permutation(seed, epoch, len(data)).split(batch_size):
        yield [tensor[indices] for tensor in data.tensors]


def windows(
    data: TensorDataset, batch_size: int, epoch: int, width: int
) -> Iterator[list[list[Tensor]]]:
    window: list[list[Tensor]] = []
    for batch in batches(data, batch_size, epoch):
        window.append(batch)
        if len(window) == width:
            yield window
            window = []
    if window:
        yield window


def train_by_hand(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    data: TensorDataset,
    *,
    epochs: int = 1,
    batch_size: int = 8,
    accumulate: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    every_update: Any = None,
    every_epoch: Any = None,
    max_updates: int | None = None,
) -> list[float]:
    """Supervised training with cross entropy as one writes it; the losses of all steps.

    Where scaled gradients overflow, none of several optimizers is stepped; after clipping they have
    none that is right.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    seed_everything(0)
    losses, updates = [], 0
    for epoch in range(epochs):
        for window in windows(data, batch_size, epoch, accumulate):
            total = sum(len(targets) for _, targets in window)
            for inputs, targets in window:
                context = (
                    nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)
                )
                with context:
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                losses.append(loss.item())
                share = loss if len(window) == 1 else loss / (total / len(targets))
                (share if scaler is None else scaler.scale(share)).backward()
            for each in optimizers if scaler is not None else ():
                scaler.unscale_(each)
            is_finite = all(
                bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None
            )
            if clip_value is not None:
                nn.utils.clip_grad_value_(model.parameters(), clip_value)
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            for each in optimizers if scaler is None or is_finite else ():
                each.step() if scaler is None else scaler.step(each)
            if scaler is not None:
                scaler.update()
            model.zero_grad()
            if every_update is not None:
                every_update.step()
            updates += 1
            if updates == max_updates:
                return losses
        if every_epoch is not None:
            every_epoch.step()
    return losses


def evaluate_by_hand(model: nn.Module, data: TensorDataset) -> float:
    """The mean cross entropy over all samples in float64, from the float32 losses of single
    samples."""
    model.eval()
    with torch.no_grad():
        losses = nn.functional.cross_entropy(
            model(data.tensors[0]), data.tensors[1], reduction="none"
        )
    model.train()
    return losses.double().mean().item()


def assert_same_model(model: nn.Module, other: nn.Module) -> None:
    """Every parameter and buffer, bit for bit."""
    own, others = model.state_dict(), other.state_dict()
    assert own.keys() == others.keys()
    for name, value in own.items():
        assert torch.equal(value, others[name]), (
            f"{name} differs by {(value - others[name]).abs().max()}"
        )


def assert_same_optimizer(optimizer: Optimizer, other: Optimizer) -> None:
    """Every state tensor and every setting of every group, bit for bit."""
    own, others = optimizer.state_dict(), other.state_dict()
    assert own["state"].keys() == others["state"].keys()
    for index, entries in own["state"].items():
        assert entries.keys() == others["state"][index].keys()
        for name, value in entries.items():
            assert _equal(value, others["state"][index][name]), (
                f"{name} of parameter {index} differs"
            )
    for group, other_group in zip(own["param_groups"], others["param_groups"], strict=True):
        assert {k: v for k, v in group.items() if k != "fused"} == {
            k: v for k, v in other_group.items() if k != "fused"
        }


def _equal(value: Any, other: Any) -> bool:
    return torch.equal(value, other) if isinstance(value, Tensor) else value == other
