"""Every collective that a process launches is counted, whichever way it is called."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from loopwright import Mesh
from loopwright.runtime.consensus import RequestConsensus
from loopwright.scaling import UpdateSettings, rank_cost
from tests.distributed.ranks import run_ranks
from tests.scaling.counting import counted_collectives


def call_all(rank: int) -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    group: Any = dist.group.WORLD
    # newer name, older name
    gather_into: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter_from: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(5)),
        "in the background": lambda: dist.all_reduce(torch.ones(5), async_op=True).wait(),
        "of the group itself": lambda: group.allreduce([torch.ones(5)]).wait(),
        "all_gather": lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)),
        "all_gather into one": lambda: gather_into(torch.ones(4), torch.ones(2)),
        "reduce_scatter of one": lambda: scatter_from(torch.ones(2), torch.ones(4)),
        "broadcast": lambda: dist.broadcast(torch.ones(3, dtype=torch.float64), 0),
        "DTensor": lambda: sharded.redistribute(placements=[Replicate()]).to_local().clone(),
        "requests": lambda: _exchange(RequestConsensus(group)),
        "nothing": lambda: torch.ones(3) @ torch.ones(3),
    }
    found = {}
    for name, call in calls.items():
        with counted_collectives() as counted:
            call()
        found[name] = [(each.kind, each.payload, each.group) for each in counted]
    message = RequestConsensus(group).message(torch.tensor(0.0))
    return {"found": found, "message": None if message is None else message.nbytes}


def _exchange(consensus: RequestConsensus) -> None:
    consensus.exchange((0, 0, 0, 0))
    consensus.finish()


def test_every_way_to_call_a_collective_is_counted_with_its_bytes() -> None:
    for result in run_ranks(call_all, 2):
        assert result["found"] == {
            "all_reduce": [("all-reduce", 20, 2)],
            "in the background": [("all-reduce", 20, 2)],
            "of the group itself": [("all-reduce", 20, 2)],
            "all_gather": [("all-gather", 16, 2)],
            "all_gather into one": [("all-gather", 16, 2)],
            "reduce_scatter of one": [("reduce-scatter", 16, 2)],
            "broadcast": [("broadcast", 24, 2)],
            "DTensor": [("all-gather", 48, 2)],
            "requests": [("all-reduce", 32, 2)],
            "nothing": [],
        }
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        cost = rank_cost(model, optimizer, UpdateSettings(Mesh(shard=2)))  # on GPUs
        messages = [
            (each.kind, each.payload) for each in cost.collectives if each.what == "messages"
        ]
        assert messages == [
            ("all-reduce", result["message"]),
            ("all-reduce", 4),
            ("all-reduce", 32),
        ]
