"""A contender's process: builds one contender and times a round of steps, in CPU seconds, whenever
asked.

    python benchmarks/contender.py DESCRIPTOR MODULE NAME WORKLOAD NUM_CHECKED

`interleaved.py` starts it, with the interpreter that has the contender's packages, on a terminal of
its own, and the function `serve` of MODULE answers (this one's, unless a benchmark has its own). A
name with a colon is a peer's (`lightning:off` is `off` of `peers/lightning.py`); with it nothing of
loopwright is imported. First comes a loss after NUM_CHECKED steps over samples in a given order,
from a model of its own; then the rounds.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from time import process_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from workloads import Round, Workload

    Build = Callable[[Workload], Round]


def find(name: str) -> tuple[Build, str | None]:
    """The function that builds the contender, and why its losses are not those of the hand-written
    loop."""
    if ":" in name:
        peer, kind = name.split(":")
        module = importlib.import_module(f"peers.{peer}")
        return getattr(module, kind), getattr(module, "DIFFERS", {}).get(kind)
    from contenders import CONTENDERS
    from interface_contenders import INTERFACES

    return (CONTENDERS | INTERFACES)[name], None


def checked_loss(build: Build, work: Workload, num_steps: int) -> float:
    """The loss on the first samples after so many steps, which is the same wherever the arithmetic
    is."""
    import torch

    models: list[nn.Module] = []

    def build_model() -> nn.Module:
        torch.manual_seed(1)
        models.append(work.build_model())
        return models[-1]

    torch.manual_seed(0)
    data = work.build_data()
    order = tuple(torch.randperm(len(data)).tolist())
    build(replace(work, build_model=build_model, build_data=lambda: data, order=order))(num_steps)
    inputs, targets = (tensor[: 4 * work.batch_size] for tensor in data.tensors)
    with torch.no_grad():
        return float(work.loss_fn(models[0].eval()(inputs), targets))


def serve(connection: Connection, name: str, workload: str, num_checked: int) -> None:
    """Send the checked loss, then for each True the CPU seconds of a call with one step and of one
    with many.

    What a training function does at its start and its end is in both, so that their difference is
    that of the steps.
    """
    import torch

    from workloads import WORKLOADS

    torch.set_num_threads(1)
    build, differs = find(name)
    work = WORKLOADS[workload]
    loss = checked_loss(build, work, num_checked) if num_checked else None
    torch.manual_seed(0)
    run = build(work)
    run(max(work.num_steps // 4, 2))
    connection.send((loss, differs))
    while connection.recv():
        began = process_time()
        run(1)
        between = process_time()
        run(work.num_steps)
        connection.send((between - began, process_time() - between, work.num_steps))


def main() -> None:
    descriptor, module, name, workload, num_checked = sys.argv[1:]
    importlib.import_module(module).serve(
        Connection(int(descriptor)), name, workload, int(num_checked)
    )


if __name__ == "__main__":
    main()
