"""`loopwright scale ...`: the bytes that ranks hold and send, for each strategy."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from ..errors import ConfigurationError
from ..runtime.dtensor import Mesh
from ..scaling import UpdateSettings, rank_cost
from ..text import size
from .output import OK, print_fitted, print_json
from .tuning import built

HELD = ("parameters", "gradients", "optimizer", "buffers")


def scale_command(options: argparse.Namespace) -> int:
    with built(options) as engine:
        engine.setup()
        if len(engine.optimizers) != 1:
            raise ConfigurationError(
                "scale-one-optimizer",
                f"There are {len(engine.optimizers)} optimizers: the bytes are computed for a "
                "model with one.",
            )
        (optimizer,) = engine.optimizers.values()
        costs = []
        for strategy, mesh in _strategies(options.devices, options.per_node):
            settings = UpdateSettings(mesh, engine.accumulate, clips=engine.clip_norm is not None)
            cost = rank_cost(engine.model, optimizer, settings)
            costs.append((strategy, mesh, cost))
    if options.json:
        rows = [
            {"strategy": name, "devices": mesh.size, "held": cost.held, "sent": cost.sent}
            | asdict(cost)
            for name, mesh, cost in costs
        ]
        print_json(rows)
        return OK
    table = []
    for name, mesh, cost in costs:
        held = [size(getattr(cost, part)) for part in HELD]
        table.append([str(mesh.size), name, *held, size(cost.held), size(round(cost.sent))])
    header = ["DEVICES", "STRATEGY", *(part.upper() for part in HELD), "TOTAL", "SENT"]
    print_fitted(header, table, right="0234567", fold="")
    print("\nBytes of each device, and those that it sends in an update. Activations come on top.")
    return OK


def _strategies(numbers: list[int], per_node: int) -> Iterator[tuple[str, Mesh]]:
    """The strategies for each number of devices; HSDP where the devices are several full nodes."""
    yield "one device", Mesh()
    for number in numbers:
        yield "DDP", Mesh(replicate=number)
        yield "FSDP2", Mesh(shard=number)
        if number > per_node and number % per_node == 0:
            yield "HSDP", Mesh(replicate=number // per_node, shard=per_node)
