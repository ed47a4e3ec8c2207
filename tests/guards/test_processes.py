"""Collectives per update on two processes: those of a hand-written DDP or FSDP2 loop, and no
more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from loopwright import Trainer
from loopwright.runtime.process_group import RankGroup
from loopwright.training import steps
from tests.distributed.ranks import run_ranks

from .counting import Training, added, operators, per_step
from .programs import BATCH, adam, build_data, build_model, mse

KINDS = (
    "allreduce",
    "all_reduce",
    "allgather",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "alltoall",
)
# the first, of gloo, is the second and two copies
REDUCTIONS = (
    "c10d::_reduce_scatter_base_",
    "c10d::allreduce_",
)


def collectives(counts: Counter[str]) -> Counter[str]:
    """The collectives among operators, by name."""
    return Counter(
        {
            name: n
            for name, n in counts.items()
            if "c10d" in name and any(kind in name for kind in KINDS)
        }
    )


def ours(strategy: str, **options: Any) -> Training:
    trainer = Trainer(build_model(), adam, mse, runtime=strategy, progress="silent", **options)
    data = build_data()
    return lambda number: trainer.train(data, num_updates=number, batch_size=2 * BATCH)


def by_hand(strategy: str) -> Training:
    model: Any = build_model()
    if strategy == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    optimizer, (inputs, targets) = adam(model.parameters()), build_data().tensors

    def train(number: int) -> None:
        for at in torch.arange(number * BATCH).view(number, BATCH):
            optimizer.zero_grad()
            mse(model(inputs[at]), targets[at]).backward()
            optimizer.step()

    return train


def count(rank: int, strategy: str, options: list[dict[str, Any]]) -> list[Counter[str]]:
    RankGroup.join()
    steps.FLUSH_SECONDS, steps.FLUSH_STEPS = 1e9, 10**9
    builds: list[Callable[[], Training]] = [partial(by_hand, strategy)]
    builds += [partial(ours, strategy, **given) for given in options]
    return [collectives(per_step(build, operators, (4, 10))) for build in builds]


OPTIONS: list[dict[str, Any]] = [{}, {"accumulate": 2}, {"clip_norm": 1.0}]


@pytest.fixture(scope="module")
def counted() -> dict[str, list[Counter[str]]]:
    """For each strategy the collectives of an update: by hand, plain, of two batches, clipped."""
    return {strategy: run_ranks(count, 2, strategy, OPTIONS)[0] for strategy in ("ddp", "fsdp")}


def test_an_update_with_ddp_has_the_one_collective_of_its_bucket(
    counted: dict[str, list[Counter[str]]],
):
    """Requests to stop are in the same message, so that there is no second one; also with
    accumulation and clipping."""
    theirs, *all_of_ours = counted["ddp"]
    assert theirs == {"c10d::allreduce_": 1}
    for now in all_of_ours:
        assert now == theirs, added(now, theirs)


def test_an_update_with_fsdp_has_the_collectives_of_the_hand_written_loop(
    counted: dict[str, list[Counter[str]]],
):
    """Requests to stop, and whether a loss was not finite, are in the message of the first
    reduce-scatter."""
    theirs, *all_of_ours = counted["fsdp"]
    assert theirs == {"c10d::_allgather_base_": 1, REDUCTIONS[0]: 1}
    for now, num_batches in zip(all_of_ours, (1, 2, 1), strict=True):
        assert now == {"c10d::_allgather_base_": num_batches, REDUCTIONS[1]: 1}, added(now, theirs)
