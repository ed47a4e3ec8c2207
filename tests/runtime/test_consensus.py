"""Requests of one rank reach all ranks one update later."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from loopwright.runtime.consensus import RequestConsensus
from loopwright.runtime.ddp import Averaging
from loopwright.runtime.distributed import DistributedRuntime
from loopwright.runtime.process_group import RankGroup
from tests.distributed.ranks import run_ranks


def exchange_requests(rank: int, requests: list[list[tuple[int, int]]]) -> list[tuple[int, ...]]:
    consensus = RequestConsensus(RankGroup.join().host_group)
    agreed = [consensus.exchange((*own, 0, 0)) for own in requests[rank]]
    return [first[:2] for first in (*agreed, consensus.finish())]


def test_all_ranks_get_the_largest_request_one_update_late() -> None:
    requests = [[(0, 0), (3, 0), (0, 0)], [(0, 1), (2, 0), (0, 5)], [(0, 0), (0, 0), (4, 0)]]
    assert run_ranks(exchange_requests, 3, requests) == [[(0, 0), (0, 1), (3, 0), (4, 5)]] * 3


def finish_twice(rank: int) -> list[tuple[int, ...]]:
    consensus = RequestConsensus(RankGroup.join().host_group)
    consensus.exchange((rank, 0, 0, 0))
    return [consensus.finish(), consensus.finish()]


def test_after_finish_no_exchange_is_in_flight() -> None:
    assert run_ranks(finish_twice, 2) == [[(1, 0, 0, 0), (0, 0, 0, 0)]] * 2


def exchange_among_others(rank: int) -> tuple[list[int], float]:
    """Consensus, gradients and objects at the same time, as in training."""
    group = RankGroup.join()
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


def exchange(rank: int, sends: bool) -> list[tuple[int, ...]]:
    """Four updates, a request of one rank in the second; the clock is that of rank 0."""
    runtime = DistributedRuntime()
    params = [nn.Parameter(torch.zeros(3))]
    agreed = []
    for update in range(4):
        if sends:
            params[0].grad = torch.ones(3)
            runtime.sync_gradients(params)
        request = 15 if rank == 1 and update == 1 else 0
        agreed.append(runtime.exchange((request, 0, 0, 1000 * (update + 1) if rank == 0 else 0)))
    runtime.finish_exchange()
    return agreed


@pytest.mark.parametrize("sends", [True, False])
def test_request_of_one_rank_is_known_to_all_one_update_later(sends: bool) -> None:
    expected = [(0, 0, 0, 0), (0, 0, 0, 1000), (15, 0, 0, 2000), (0, 0, 0, 3000)]
    assert run_ranks(exchange, 2, sends) == [expected, expected]


def sum_flags(rank: int, flags: list[float]) -> tuple[float, float]:
    """A flag as a tensor, as on a GPU: summed in a gradient bucket, and in an all-reduce of its
    own."""
    group = RankGroup.join()
    consensus = RequestConsensus(group.host_group)
    message = consensus.message(torch.tensor(flags[rank]))
    assert message is not None
    param = nn.Parameter(torch.zeros(3))
    param.grad = torch.ones(3)
    in_bucket = Averaging(None, group.world).average([param], message)
    assert in_bucket is not None
    dist.all_reduce(message)
    return float(consensus.receive(in_bucket)), float(consensus.receive(message))


@pytest.mark.parametrize(("flags", "expected"), [([0.0, 0.0], 0.0), ([0.0, 1.0], 1.0)])
def test_flag_on_a_device_is_set_on_all_ranks_if_it_is_on_one(
    flags: list[float], expected: float
) -> None:
    assert run_ranks(sum_flags, 2, flags) == [(expected, expected)] * 2
