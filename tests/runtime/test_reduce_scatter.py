"""FSDP2's reduce-scatter on the CPU: the shards that torch's own gives, and a message that is
summed in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from loopwright import DistributedRuntime, Trainer
from loopwright.runtime.process_group import RankGroup
from loopwright.runtime.reduce_scatter import HostReduceScatter, Message
from tests.distributed.ranks import run_ranks


def scatter(rank: int, dtype: torch.dtype, op: str) -> tuple[bool, list[float] | None, bool]:
    """Whether the shard is torch's, the summed message, and whether it is left for a later
    collective."""
    RankGroup.join()
    reduce_op = getattr(dist.ReduceOp, op)
    given = torch.randn(8, generator=torch.Generator().manual_seed(rank)).to(dtype)
    theirs, reduce_scatter = torch.empty(4, dtype=dtype), HostReduceScatter()
    # newer and older name
    scatter_from: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    scatter_from(theirs, given.clone(), op=reduce_op)
    allocate: Any = reduce_scatter.allocate
    flat, ours = (allocate((size,), dtype=dtype, device=torch.device("cpu")) for size in (8, 4))
    flat.copy_(given)
    reduce_scatter.pending = message = Message(torch.tensor([rank, 1.0, 7.0], dtype=torch.float64))
    reduce_scatter(ours, flat, dist.group.WORLD, reduce_op)
    summed = None if message.summed is None else message.summed.tolist()
    return torch.equal(ours, theirs), summed, reduce_scatter.pending is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["AVG", "SUM"])
def test_the_shard_is_torchs_and_the_message_is_summed(dtype: torch.dtype, op: str) -> None:
    assert run_ranks(scatter, 2, dtype, op) == [(True, [1.0, 2.0, 14.0], False)] * 2


def test_a_dtype_that_would_round_a_message_leaves_it_for_a_later_collective() -> None:
    assert run_ranks(scatter, 2, torch.bfloat16, "AVG") == [(True, None, True)] * 2


def build() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)), nn.Linear(6, 2)
    )


def train_both(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Six updates of a model of several blocks: by a trainer, and by a loop written with FSDP2."""
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(24, 6, generator=generator), torch.randn(24, 2, generator=generator)
    ours: Any = build()
    optimizer = torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9)
    trainer = Trainer(
        ours, optimizer, nn.MSELoss(), runtime=DistributedRuntime("fsdp"), progress="silent"
    )
    trainer.train(DataLoader(TensorDataset(x, y), batch_size=4), num_updates=6)
    theirs: Any = build()
    for block in theirs[:3]:
        fully_shard(block)
    fully_shard(theirs)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9)
    for number in range(6):
        at = slice(4 * number + 2 * rank, 4 * number + 2 * rank + 2)
        optimizer.zero_grad()
        nn.functional.mse_loss(theirs(x[at].clone()), y[at].clone()).backward()
        optimizer.step()
    return [
        (a.full_tensor(), b.full_tensor())
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    ]


def test_training_is_that_of_the_loop_written_with_fsdp2_to_the_last_bit() -> None:
    for pairs in run_ranks(train_both, 2):
        assert all(torch.equal(a, b) for a, b in pairs)
