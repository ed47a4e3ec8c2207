"""Training on several processes gives what one process gives, for the same batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import Trainer
from tests.distributed.ranks import run_ranks


def build_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double()


def build_data(n: int = 37) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin() + x[:, 2:4])


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def train(rank: int, runtime: str | None, options: dict, num_epochs: int = 2) -> tuple[list[Tensor], list[dict], list]:
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = Trainer(model, optimizer, nn.MSELoss(), runtime=runtime, progress="silent", **options)
    history = trainer.train(build_data(), num_epochs=num_epochs, eval_data=build_data(13), batch_size=8)
    return [whole(p) for p in model.parameters()], history.epochs, list(history.steps["loss"])


OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"accumulate": 2}, id="accumulated"),
    pytest.param({"clip_norm": 0.1, "accumulate": 3}, id="clipped"),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("runtime", ["ddp", "fsdp"])
@pytest.mark.parametrize("world", [2, 3])
def test_weights_and_metrics_equal_those_of_one_process(world: int, runtime: str, options: dict) -> None:
    expected, epochs, steps = train(0, "cpu", options)
    for params, own_epochs, own_steps in run_ranks(train, world, runtime, options):
        for ours, theirs in zip(params, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        assert [list(row) for row in own_epochs] == [list(row) for row in epochs]
        torch.testing.assert_close(
            torch.tensor([list(row.values()) for row in own_epochs]), torch.tensor([list(row.values()) for row in epochs])
        )
        torch.testing.assert_close(torch.tensor(own_steps), torch.tensor(steps))
