"""Batch norm over the batch of all processes is batch norm over the whole batch on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import DistributedRuntime, Trainer
from loopwright.runtime.ddp import SyncBatchNorm
from tests.distributed.ranks import run_ranks
from tests.distributed.scenarios import assert_same, weights_of

SETUPS = [(2, "ddp"), (3, "fsdp"), (4, "ddp")]


class WithoutMemory(nn.Module):
    """Batch norm without running statistics, which in evaluation would depend on how the data is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.training else x


def build(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4, momentum=momentum),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5, affine=False),
        WithoutMemory(),
        nn.Linear(5, 3),
    ).double()


def build_data() -> TensorDataset:
    """So many that the last batch has fewer samples than four processes, and parts are never all alike."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(25, 2, 4, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.flatten(1)[:, :3])


def train(rank: int, strategy: str | None) -> list[Any]:
    results = []
    for momentum, accumulate in ((0.1, 1), (None, 2)):
        model = build(momentum)
        runtime = "cpu" if strategy is None else DistributedRuntime(strategy, sync_batch_norm=True)
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
            nn.MSELoss(),
            runtime=runtime,
            accumulate=accumulate,
            progress="silent",
        )
        history = trainer.train(build_data(), num_epochs=2, eval_data=build_data(), batch_size=11)
        kinds = {type(part).__name__ for part in model.modules() if "BatchNorm" in type(part).__name__}
        results.append({"state": weights_of(model), "names": list(model.state_dict()), "epochs": history.epochs})
        assert kinds == ({"BatchNorm1d", "BatchNorm2d"} if strategy is None else {"SyncBatchNorm"})
    return results


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return train(0, None)


@pytest.mark.parametrize(("world", "strategy"), SETUPS)
def test_weights_and_statistics_equal_those_of_one_process(world: int, strategy: str, alone: list[Any]) -> None:
    for ours in run_ranks(train, world, strategy):
        assert_same(ours, alone)


def normalise_one_value(rank: int) -> str:
    runtime = DistributedRuntime("ddp", sync_batch_norm=True)
    model = nn.Sequential(nn.BatchNorm1d(3))
    runtime.wrap(model)
    runtime.start_step(is_last=True, size=rank)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 3))
    model.eval()
    return str(model(torch.ones(1, 3)).shape)


def test_a_single_value_for_all_processes_is_refused_as_by_any_batch_norm() -> None:
    assert run_ranks(normalise_one_value, 2) == ["torch.Size([1, 3])"] * 2


def test_torchs_own_which_needs_cuda_is_replaced_too() -> None:
    from loopwright.runtime.ddp import Part, convert

    model = nn.Sequential(nn.SyncBatchNorm(3), nn.Linear(3, 3))
    norm, names = model[0], list(model.state_dict())
    assert convert(model, Part()) == [norm]
    assert isinstance(model[0], SyncBatchNorm)
    assert list(model.state_dict()) == names
