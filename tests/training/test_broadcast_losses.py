"""Outputs of shape (n, 1) and targets of shape (n,) are not compared all with all, unless the loss
says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from loopwright.interfaces import lifecycle, simple
from tests.mistakes import raises

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1)


def squared(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets) ** 2).mean()


class Squared(nn.Module):
    def forward(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()


def build(loss: Any, model: nn.Module | None = None) -> Trainer:
    model = nn.Linear(4, 1) if model is None else model
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), loss, progress="silent")


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch's own, before its loss broadcasts
@pytest.mark.parametrize(
    "loss",
    [squared, Squared(), nn.MSELoss(), nn.L1Loss(), nn.HuberLoss()],
    ids=["a function", "a module", "MSELoss", "L1Loss", "HuberLoss"],
)
def test_a_loss_that_broadcasts_is_refused(loss: Any) -> None:
    with raises("broadcast-loss"):
        build(loss).train((X, Y), 1, batch_size=8)


def test_the_interfaces_with_a_loss_function_refuse_it() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(X, Y)
    with raises("broadcast-loss", "every output with every target"):
        simple.Trainer(model, optimizer, squared).train(torch.utils.data.DataLoader(data, 8), 1)
    with raises("broadcast-loss", "every output with every target"):
        lifecycle.Trainer(model, Squared(), optimizer, callbacks=()).train(data, 1)


def of_squeezed(outputs: Any, targets: Any) -> Any:
    return ((outputs.squeeze(1) - targets) ** 2).mean()


def of_all_pairs(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets[None]) ** 2).mean()


def of_ranks(outputs: Any, targets: Any) -> Any:
    """A ranking loss: all pairs of outputs, all pairs of targets."""
    return torch.relu(
        1 - (outputs - outputs.T) * torch.sign(targets[:, None] - targets[None])
    ).mean()


@pytest.mark.parametrize("loss", [of_squeezed, of_all_pairs, of_ranks])
def test_a_loss_that_means_what_it_does_is_trained_as_by_hand(loss: Any) -> None:
    torch.manual_seed(1)
    ours, theirs = nn.Linear(4, 1), nn.Linear(4, 1)
    theirs.load_state_dict(ours.state_dict())
    build(loss, ours).train([(X[:8], Y[:8]), (X[8:16], Y[8:16])], 2)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01)
    for _ in range(2):
        for part in (slice(0, 8), slice(8, 16)):
            optimizer.zero_grad()
            loss(theirs(X[part]), Y[part]).backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
