"""Ranks join one group and exchange host objects in it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from loopwright import DistributedRuntime
from loopwright.runtime.process_group import RankGroup
from tests.distributed.ranks import run_ranks


def sum_tables(
    rank: int, tables: list[dict[str, tuple[float, float]]]
) -> dict[str, tuple[float, float]]:
    return DistributedRuntime().sum_table(tables[rank])


def test_a_table_is_summed_by_name_also_where_a_rank_lacks_one() -> None:
    tables = [{"loss": (1.5, 2.0)}, {"loss": (0.25, 1.0), "accuracy": (3.0, 4.0)}, {}]
    assert run_ranks(sum_tables, 3, tables) == [{"loss": (1.75, 3.0), "accuracy": (3.0, 4.0)}] * 3


def test_a_table_is_summed_in_the_order_of_ranks() -> None:
    values = [0.1, 1e17, 0.2, -1e17]
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    tables = [{"x": (value, 1.0)} for value in values]
    assert run_ranks(sum_tables, 4, tables) == [{"x": (expected, 4.0)}] * 4


def share_objects(rank: int) -> tuple[list[Any], Any, int]:
    group = RankGroup.join()
    group.barrier("a test")
    return (
        group.gather_objects({"rank": rank}),
        group.broadcast_object(f"from {rank}"),
        group.rank,
    )


def test_objects_are_gathered_by_rank_and_broadcast_from_one() -> None:
    by_rank = [{"rank": 0}, {"rank": 1}]
    assert run_ranks(share_objects, 2) == [
        (by_rank, "from 0", 0),
        (by_rank, "from 0", 1),
    ]


def join_twice(rank: int) -> bool:
    first = RankGroup.join()
    return RankGroup.join() is first


def test_a_process_joins_once() -> None:
    assert run_ranks(join_twice, 2) == [True, True]


def join_initialised(rank: int) -> tuple[int, bool]:
    dist.init_process_group("gloo")
    group = RankGroup.join()
    total = sum(group.gather_objects(1))
    group.close()
    return total, dist.is_initialized()


def test_a_group_that_the_user_initialised_is_used_and_left_alone() -> None:
    assert run_ranks(join_initialised, 2) == [(2, True)] * 2
