"""The computed cost is what is counted on real processes: every collective to the byte, and the
bytes of each rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once here, not in every process that is forked
import torch.distributed.tensor

from loopwright import Mesh
from loopwright.scaling import UpdateSettings, rank_cost
from tests.distributed.ranks import run_ranks
from tests.mistakes import raises
from tests.scaling import models
from tests.scaling.counting import table_of
from tests.scaling.counts import Case, count

HALF = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}
FULL = {"reduce_dtype": torch.float32}
CASES = {
    "DDP, MLP": Case(
        models.mlp, Mesh(replicate=2), optimizer=partial(torch.optim.SGD, momentum=0.9)
    ),
    "DDP, transformer, accumulated": Case(
        models.text, Mesh(replicate=2), accumulate=2, clip_norm=1.0
    ),
    "DDP, frozen embedding": Case(
        models.frozen_text, Mesh(replicate=2), optimizer=torch.optim.Adam
    ),
    "DDP, buckets": Case(
        models.text, Mesh(replicate=2), runtime={"bucket_mb": 0.0005}, accumulate=2
    ),
    "FSDP2, MLP": Case(models.mlp, Mesh(shard=2), optimizer=torch.optim.SGD, clip_norm=1.0),
    "FSDP2, transformer": Case(models.text, Mesh(shard=2)),
    "FSDP2, accumulated": Case(models.text, Mesh(shard=2), accumulate=3, clip_norm=1.0),
    "FSDP2, kept after forward": Case(models.text, Mesh(shard=2), reshard=False),
    "FSDP2, all freed after forward": Case(models.text, Mesh(shard=2), reshard=True),
    "FSDP2, frozen embedding": Case(models.frozen_text, Mesh(shard=2)),
    "FSDP2, bf16": Case(models.text, Mesh(shard=2), runtime=HALF, clip_norm=1.0),
    "FSDP2, reduced in bf16": Case(
        models.text, Mesh(shard=2), runtime={"reduce_dtype": torch.bfloat16}
    ),
    "FSDP2, accumulated in fp32": Case(
        models.text, Mesh(shard=2), accumulate=2, runtime=HALF | FULL
    ),
    "FSDP2, recomputed": Case(
        models.text, Mesh(shard=2), runtime={"activation_checkpointing": True}
    ),
    "FSDP2, rows to fill up": Case(models.uneven_text, Mesh(shard=4), clip_norm=1.0),
    "FSDP2, kept among two": Case(models.text, Mesh(shard=4), reshard=2),
    "FSDP2, rows to fill up, kept among two": Case(
        models.uneven_text, Mesh(shard=4), reshard=2, accumulate=2
    ),
    "HSDP": Case(models.text, Mesh(replicate=2, shard=2), clip_norm=1.0),
    "HSDP, accumulated, bf16": Case(
        models.uneven_text, Mesh(replicate=2, shard=2), accumulate=2, runtime=HALF
    ),
    "DDP on three": Case(models.mlp, Mesh(replicate=3), samples=9),
    "FSDP2 on three": Case(models.uneven_text, Mesh(shard=3), samples=9),
}


@pytest.fixture(scope="module")
def counted() -> dict[str, list[Any]]:
    """For each case what every rank counted; the processes of one number do all cases of that
    number."""
    found: dict[str, list[Any]] = {}
    for world in (2, 3, 4):
        cases = {name: case for name, case in CASES.items() if case.world == world}
        ranks = run_ranks(count, world, cases)
        found |= {name: [rank[name] for rank in ranks] for name in cases}
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_rank_holds_and_sends_the_computed_bytes(
    name: str, counted: dict[str, list[Any]]
) -> None:
    costs = [CASES[name].cost(rank) for rank in range(CASES[name].world)]
    for (table, held), cost in zip(counted[name], costs, strict=True):
        assert table
        assert table == table_of(cost.collectives)
        assert held == {part: getattr(cost, part) for part in held}
    assert costs[0].held == max(cost.held for cost in costs)


def test_what_cannot_be_computed_is_refused() -> None:
    with raises("cost-of-tensor-parallelism", "tensor=2"):
        UpdateSettings(Mesh(tensor=2, plan={"up": None}))
    model = torch.nn.Linear(2, 2)
    with raises("optimizer-state", "Adafactor"):
        rank_cost(model, torch.optim.Adafactor(model.parameters()), UpdateSettings(Mesh()))
