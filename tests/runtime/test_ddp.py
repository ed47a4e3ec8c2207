"""Gradients averaged over ranks with a message; batch norm over the batch of all ranks, as in one
process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import DistributedRuntime, Trainer
from loopwright.runtime import buckets
from loopwright.runtime.batch_norm import Part, SyncBatchNorm, convert
from loopwright.runtime.buckets import fill_buckets
from loopwright.runtime.ddp import Averaging
from loopwright.runtime.process_group import RankGroup
from tests.distributed.ranks import run_ranks
from tests.distributed.scenarios import assert_same, weights_of

SETUPS = [(3, "fsdp"), (4, "ddp")]


class WithoutMemory(nn.Module):
    """Batch norm without running statistics, which in evaluation would depend on how the data is
    divided."""

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
    """So many that the last batch has fewer samples than four processes, and parts are never all
    alike."""
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
        kinds = {
            type(part).__name__ for part in model.modules() if "BatchNorm" in type(part).__name__
        }
        results.append(
            {
                "state": weights_of(model),
                "names": list(model.state_dict()),
                "epochs": history.epochs,
            }
        )
        assert kinds == ({"BatchNorm1d", "BatchNorm2d"} if strategy is None else {"SyncBatchNorm"})
    return results


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return train(0, None)


@pytest.mark.parametrize(("world", "strategy"), SETUPS)
def test_weights_and_statistics_equal_those_of_one_process(
    world: int, strategy: str, alone: list[Any]
) -> None:
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
    model = nn.Sequential(nn.SyncBatchNorm(3), nn.Linear(3, 3))
    norm, names = model[0], list(model.state_dict())
    convert(model, Part())
    assert model[0] is norm
    assert isinstance(model[0], SyncBatchNorm)
    assert list(model.state_dict()) == names


def average(rank: int, flags: tuple[float, float]) -> tuple[list[Tensor | None], list[float]]:
    group = RankGroup.join()
    params = [
        nn.Parameter(torch.zeros(2, 3)),
        nn.Parameter(torch.zeros(4)),
        nn.Parameter(torch.zeros(())),
    ]
    params[0].grad = torch.full((2, 3), float(rank))
    if rank == 1:
        params[1].grad = torch.ones(4)
    message = Averaging(None, group.world).average(
        params, torch.tensor([flags[rank], 0.0, 7.0 if rank == 0 else 0.0])
    )
    assert message is not None
    return [param.grad for param in params], message.tolist()


@pytest.mark.parametrize("flags", [(0.0, 1.0), (1.0, 1.0)])
def test_messages_are_added_up_and_change_no_gradient(flags: tuple[float, float]) -> None:
    for grads, message in run_ranks(average, 2, flags):
        assert message == [sum(flags), 0.0, 7.0]
        assert torch.equal(grads[0], torch.full((2, 3), 0.5))
        assert torch.equal(grads[1], torch.full((4,), 0.5))
        assert grads[2] is None


def average_often(rank: int) -> list[tuple[bool, list[Tensor | None]]]:
    """Several updates of the same parameters, in memory that is kept and in such that is not."""
    group, rounds = RankGroup.join(), []
    for limit in (buckets.KEPT_BYTES, 0):
        buckets.KEPT_BYTES = limit
        params = [nn.Parameter(torch.zeros(2, 3).t()), nn.Parameter(torch.zeros(4))]
        average = Averaging(None, group.world).average
        for update in range(3):
            params[0].grad = before = torch.full((2, 3), float(rank + update)).t()
            params[1].grad = None if rank == 0 and update == 1 else torch.ones(4)
            average(params, torch.zeros(3, dtype=torch.float64))
            is_same = params[0].grad is before and before.stride() == params[0].stride()
            rounds.append((is_same, [param.grad for param in params]))
    return rounds


def test_gradients_stay_the_tensors_they_were_and_no_update_changes_those_of_another() -> None:
    for rounds in run_ranks(average_often, 2):
        for update, (is_same, grads) in zip([0, 1, 2] * 2, rounds, strict=True):
            assert is_same
            assert torch.equal(grads[0], torch.full((3, 2), update + 0.5))
            assert torch.equal(grads[1], torch.full((4,), 0.5 if update == 1 else 1.0))


def test_buckets_end_at_the_parameter_that_fills_them_and_hold_one_type() -> None:
    sizes, single = (3, 1, 2, 2, 5), [nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    params = [nn.Parameter(torch.zeros(n)) for n in sizes]
    found = fill_buckets([*params[:2], *single, *params[2:]], max_bytes=16)
    assert [[p.numel() for p in bucket] for bucket in found] == [[3, 1], [1], [2, 2], [5]]
