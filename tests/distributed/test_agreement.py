"""What the processes of a group tell each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from loopwright.errors import DataError
from loopwright.runtime.collectives import SHORT
from loopwright.runtime.consensus import RequestConsensus
from loopwright.runtime.process_group import Group

from .ranks import run_ranks


def exchange_requests(rank: int, requests: list[list[tuple[int, int]]]) -> list[tuple[int, ...]]:
    consensus = RequestConsensus(Group.join().host_group, num_requests=2)
    return [*(consensus.exchange(own) for own in requests[rank]), consensus.finish()]


def test_all_ranks_get_the_largest_request_one_update_late() -> None:
    requests = [[(0, 0), (3, 0), (0, 0)], [(0, 1), (2, 0), (0, 5)], [(0, 0), (0, 0), (4, 0)]]
    assert run_ranks(exchange_requests, 3, requests) == [[(0, 0), (0, 1), (3, 0), (4, 5)]] * 3


def finish_twice(rank: int) -> list[tuple[int, ...]]:
    consensus = RequestConsensus(Group.join().host_group)
    consensus.exchange((rank, 0, 0, 0))
    return [consensus.finish(), consensus.finish()]


def test_after_finish_no_exchange_is_in_flight() -> None:
    assert run_ranks(finish_twice, 2) == [[(1, 0, 0, 0), (0, 0, 0, 0)]] * 2


def exchange_among_others(rank: int) -> tuple[list[int], float]:
    """Consensus, gradients and objects at the same time, as in training."""
    group = Group.join()
    consensus = RequestConsensus(group.new_host_group())
    agreed, total = [], 0.0
    for update in range(20):
        agreed.append(consensus.exchange((update if rank == update % 2 else 0, 0, 0, 0))[0])
        gradient = torch.full((100,), float(rank))
        dist.all_reduce(gradient)
        total += gradient[0].item() + sum(group.gather_objects(rank))
    consensus.finish()
    return agreed, total


def test_an_exchange_in_flight_does_not_disturb_other_collectives() -> None:
    assert run_ranks(exchange_among_others, 2) == [([0, *range(19)], 40.0)] * 2


def sum_tables(rank: int, tables: list[dict[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    return Group.join().sum_table(tables[rank])


def test_a_table_is_summed_by_name_also_where_a_rank_lacks_one() -> None:
    tables = [{"loss": (1.5, 2.0)}, {"loss": (0.25, 1.0), "accuracy": (3.0, 4.0)}, {}]
    assert run_ranks(sum_tables, 3, tables) == [{"loss": (1.75, 3.0), "accuracy": (3.0, 4.0)}] * 3


def test_a_table_is_summed_in_the_order_of_ranks() -> None:
    values = [0.1, 1e17, 0.2, -1e17]
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    tables = [{"x": (value, 1.0)} for value in values]
    assert run_ranks(sum_tables, 4, tables) == [{"x": (expected, 4.0)}] * 4


def share_objects(rank: int) -> tuple[list[Any], Any, int, bool]:
    group = Group.join()
    group.barrier("a test")
    return (
        group.gather_objects({"rank": rank}),
        group.broadcast_object(f"from {rank}", source=1),
        group.rank,
        group.is_main,
    )


def test_objects_are_gathered_by_rank_and_broadcast_from_one() -> None:
    everyone = [{"rank": 0}, {"rank": 1}]
    assert run_ranks(share_objects, 2) == [(everyone, "from 1", 0, True), (everyone, "from 1", 1, False)]


def share_long_objects(rank: int) -> list[list[int]]:
    """Lengths around the one up to which an object travels with its size; each process's differ."""
    group = Group.join()
    lengths = [0, 1, SHORT - 40, SHORT, SHORT + 1, 3 * SHORT]
    shared = [group.gather_objects(bytes([rank]) * (length if rank else 7)) for length in lengths]
    assert all(set(value) <= {number} for values in shared for number, value in enumerate(values))
    return [[len(value) for value in values] for values in shared]


def test_objects_of_any_length_are_gathered() -> None:
    expected = [[7, length] for length in (0, 1, SHORT - 40, SHORT, SHORT + 1, 3 * SHORT)]
    assert run_ranks(share_long_objects, 2) == [expected] * 2


def join_twice(rank: int) -> bool:
    first = Group.join()
    return Group.join() is first


def test_a_process_joins_once() -> None:
    assert run_ranks(join_twice, 2) == [True, True]


def join_initialised(rank: int) -> tuple[int, bool]:
    dist.init_process_group("gloo")
    group = Group.join()
    total = sum(group.gather_objects(1))
    group.close()
    return total, dist.is_initialized()


def test_a_group_that_the_user_initialised_is_used_and_left_alone() -> None:
    assert run_ranks(join_initialised, 2) == [(2, True)] * 2


def gather_lengths(rank: int, dtype: torch.dtype) -> torch.Tensor:
    lengths = [2, 0, 3]
    return Group.join().gather(torch.full((lengths[rank], 2), rank, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_gather_takes_every_rank_s_real_rows(dtype: torch.dtype) -> None:
    expected = torch.tensor([[0, 0], [0, 0], [2, 2], [2, 2], [2, 2]]).to(dtype)
    for gathered in run_ranks(gather_lengths, 3, dtype):
        assert gathered.dtype == dtype
        assert torch.equal(gathered, expected)


def gather_sequences(rank: int) -> torch.Tensor:
    return Group.join().gather(torch.full((2 - rank, 1 + rank, 2), rank + 1), padding_value=-1)


def test_gather_fills_other_dimensions_up_to_the_largest() -> None:
    first = [[1, 1], [-1, -1]]
    assert [g.tolist() for g in run_ranks(gather_sequences, 2)] == [[first, first, [[2, 2], [2, 2]]]] * 2


def gather_scalars(rank: int) -> torch.Tensor:
    return Group.join().gather(torch.tensor(rank + 0.5))


def test_gather_of_scalars_has_one_for_each_rank() -> None:
    assert [g.tolist() for g in run_ranks(gather_scalars, 2)] == [[0.5, 1.5]] * 2


def gather_unlike(rank: int, shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> str:
    group = Group.join()
    with pytest.raises(DataError) as raised:
        group.gather(torch.zeros(shapes[rank], dtype=dtypes[rank]))
    group.barrier("after it")  # all ranks raised, so the group still works
    return str(raised.value)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ([(1, 2), (1, 3)], [torch.float32, torch.float32], "rank 0 (1, 2), rank 1 (1, 3). Pass padding_value="),
        ([(1, 2), (1,)], [torch.float32, torch.float32], "number of dimensions differs"),
        ([(1,), (1,)], [torch.float32, torch.int64], "rank 0 torch.float32, rank 1 torch.int64"),
    ],
)
def test_what_cannot_be_gathered_is_refused_on_all_ranks(
    shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], message: str
) -> None:
    for refused in run_ranks(gather_unlike, 2, shapes, dtypes):
        assert message in refused
