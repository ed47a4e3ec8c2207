"""The estimate equals what is counted on real processes: every collective to the byte, and the
bytes of each rank."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once here, not in every process that is forked
import torch.distributed.tensor

from loopwright import Mesh
from loopwright.cli import main
from loopwright.scaling import Estimate, table_of
from loopwright.scaling.layout import memory_of, wrapped_parts
from tests.distributed.ranks import run_ranks
from tests.scaling import models
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
    "TP": Case(models.text, Mesh(tensor=2, plan=models.PLAN), clip_norm=1.0, accumulate=2),
    "FSDP2, rows to fill up": Case(models.uneven_text, Mesh(shard=4), clip_norm=1.0),
    "FSDP2, kept among two": Case(models.text, Mesh(shard=4), reshard=2),
    "FSDP2, rows to fill up, kept among two": Case(
        models.uneven_text, Mesh(shard=4), reshard=2, accumulate=2
    ),
    "HSDP": Case(models.text, Mesh(replicate=2, shard=2), clip_norm=1.0),
    "HSDP, accumulated, bf16": Case(
        models.uneven_text, Mesh(replicate=2, shard=2), accumulate=2, runtime=HALF
    ),
    "DDP x TP": Case(models.text, Mesh(replicate=2, tensor=2, plan=models.PLAN), clip_norm=1.0),
    "FSDP2 x TP": Case(
        models.text, Mesh(shard=2, tensor=2, plan=models.PLAN), clip_norm=1.0, accumulate=2
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


@cache
def estimated(name: str) -> Estimate:
    return CASES[name].estimate()


@pytest.mark.parametrize("name", CASES)
def test_every_collective_of_an_update_is_the_one_that_was_estimated(
    name: str, counted: dict[str, list[Any]]
) -> None:
    expected = table_of(estimated(name).collectives)
    assert expected
    for table, _, _ in counted[name]:
        assert table == expected


@pytest.mark.parametrize("name", CASES)
def test_every_rank_holds_the_bytes_that_were_estimated(
    name: str, counted: dict[str, list[Any]]
) -> None:
    one = estimated(name)
    for rank, (_, held, _) in enumerate(counted[name]):
        memory = one.memory_on(rank)
        assert held == {
            part: getattr(memory, part) for part in ("gradients", "parameters", "optimizer")
        }
    assert one.memory == one.memory_on(0)
    assert one.memory.state == max(one.memory_on(rank).state for rank in range(one.devices))


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.mesh.shard > 1 and case.accumulate > 1]
)
def test_accumulated_shards_keep_full_gradients_between_steps(
    name: str, counted: dict[str, list[Any]]
) -> None:
    one = estimated(name)
    once = replace(one.training, accumulate=1)
    few = memory_of(one.model, one.sizes, once).working
    for _, _, full in counted[name]:
        assert full > 0
        assert few <= one.memory.working
        parts = wrapped_parts(one.model, one.sizes, one.training)
        assert full == sum(part.gradients * count for part, count in parts.items())


PROGRAM = """
import sys
from tests.scaling.counts import train
from tests.scaling.test_counts import CASES
train(CASES[sys.argv[1]])
"""


@pytest.mark.parametrize(
    "name",
    [
        "DDP, buckets",
        "DDP, MLP",
        "FSDP2, accumulated",
        "FSDP2, bf16",
        "HSDP, accumulated, bf16",
        "DDP x TP",
    ],
)
def test_a_dry_run_counts_what_real_processes_send_beside_the_estimate(
    name: str, counted: dict[str, list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert (
        main(
            [
                "check",
                "--json",
                "--processes",
                str(CASES[name].world),
                str(tmp_path / "train.py"),
                name,
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)["collectives"]
    keys = ("kind", "bytes", "processes")
    tables = {
        which: rows and {tuple(row[key] for key in keys): row["count"] for row in rows}
        for which, rows in found.items()
    }
    (real, _, _), *_ = counted[name]
    if CASES[name].mesh.tensor == 1:
        assert tables == {"counted": real, "estimated": real}
    else:  # activations of two samples, where the real processes had four; and no estimate
        assert tables["estimated"] is None
        assert sum(tables["counted"].values()) == sum(real.values())
