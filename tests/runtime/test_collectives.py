"""Objects of any length, and tensors of different shapes, gathered from all ranks."""

from __future__ import annotations

import pytest
import torch

from loopwright.runtime.process_group import SHORT, RankGroup
from tests.distributed.ranks import run_ranks
from tests.mistakes import raises


def share_long_objects(rank: int) -> list[list[int]]:
    """Lengths around the one up to which an object travels with its size; each process's differ."""
    group = RankGroup.join()
    lengths = [0, 1, SHORT - 40, SHORT, SHORT + 1, 3 * SHORT]
    shared = [group.gather_objects(bytes([rank]) * (length if rank else 7)) for length in lengths]
    assert all(set(value) <= {number} for values in shared for number, value in enumerate(values))
    return [[len(value) for value in values] for values in shared]


def test_objects_of_any_length_are_gathered() -> None:
    expected = [[7, length] for length in (0, 1, SHORT - 40, SHORT, SHORT + 1, 3 * SHORT)]
    assert run_ranks(share_long_objects, 2) == [expected] * 2


def gather_lengths(rank: int, dtype: torch.dtype) -> torch.Tensor:
    lengths = [2, 0, 3]
    return RankGroup.join().gather(torch.full((lengths[rank], 2), rank, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_gather_takes_every_rank_s_real_rows(dtype: torch.dtype) -> None:
    expected = torch.tensor([[0, 0], [0, 0], [2, 2], [2, 2], [2, 2]]).to(dtype)
    for gathered in run_ranks(gather_lengths, 3, dtype):
        assert gathered.dtype == dtype
        assert torch.equal(gathered, expected)


def gather_sequences(rank: int) -> torch.Tensor:
    return RankGroup.join().gather(torch.full((2 - rank, 1 + rank, 2), rank + 1), padding_value=-1)


def test_gather_fills_other_dimensions_up_to_the_largest() -> None:
    first = [[1, 1], [-1, -1]]
    assert [g.tolist() for g in run_ranks(gather_sequences, 2)] == [
        [first, first, [[2, 2], [2, 2]]]
    ] * 2


def gather_scalars(rank: int) -> torch.Tensor:
    return RankGroup.join().gather(torch.tensor(rank + 0.5))


def test_gather_of_scalars_has_one_for_each_rank() -> None:
    assert [g.tolist() for g in run_ranks(gather_scalars, 2)] == [[0.5, 1.5]] * 2


def gather_unlike(rank: int, shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> str:
    group = RankGroup.join()
    with raises("gather-mismatch") as raised:
        group.gather(torch.zeros(shapes[rank], dtype=dtypes[rank]))
    group.barrier("after it")  # all ranks raised, so the group still works
    return str(raised.value)


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        pytest.param([(1, 2), (1, 3)], [torch.float32, torch.float32], id="sizes"),
        pytest.param([(1,), (1,)], [torch.float32, torch.int64], id="dtypes"),
    ],
)
def test_what_cannot_be_gathered_is_refused_on_all_ranks(
    shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]
) -> None:
    for refused in run_ranks(gather_unlike, 2, shapes, dtypes):
        assert f"rank 0 {shapes[0]} {dtypes[0]}, rank 1 {shapes[1]} {dtypes[1]}" in refused
