"""What several processes cost: steps against hand-written DDP and FSDP2 loops, and the stall of a
checkpoint.

    python benchmarks/distributed.py [--rounds 25] [--workloads W1 W2 W3] [--strategies ddp fsdp]
    [--params 20]

Two processes on one machine have all contenders and run them in turns, a few steps each. Only
ratios within one run mean anything; where others use the same cores, the ratio of the fastest
rounds means most. Wall time is that of the slower process, CPU time the sum of both. Each turn is a
call of `train`, whose first step, start and end are not in the time of a step but printed on their
own. A thread of gloo's polls for as long as the other process is late, so CPU time has a share of
chance in it; "main" is the CPU time of the main threads alone, which is what the loops differ in.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter, process_time, thread_time
from typing import Any

from interleaved import ratio

WORLD = 2
LOOPS = ("hand_written", "tight", "ours", "ours_factory")
PAIRS = [("ours", "hand_written"), ("ours_factory", "tight")]
TARGETS = {"W1": 1.10, "W2": 1.03, "W3": 1.03}
STALL = 0.15
STEPS = 5  # that part of a workload's steps is a turn

Measures = dict[str, Callable[[], tuple[float, ...]]]


def serve(
    connection: Connection,
    rank: int,
    port: int,
    build: Callable[..., Measures],
    arguments: Sequence[Any],
) -> None:
    """On each process: build the contenders, then measure the one that is asked for."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(WORLD),
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    measures = build(*arguments)
    connection.send("ready")
    while name := connection.recv():
        dist.barrier()
        connection.send(measures[name]())
    os._exit(0)  # nothing is left to be done, and gloo may wait for the other process at its end


def loops(workload: str, strategy: str) -> Measures:
    """Contenders that take a few steps; seconds of one: CPU, wall, CPU of the main thread, and that
    of all the rest."""
    from distributed_contenders import CONTENDERS
    from workloads import WORKLOADS

    work = WORKLOADS[workload]
    num_steps = max(work.num_steps // STEPS, 3)

    def timed(run: Any) -> tuple[float, ...]:
        notes: list[tuple[float, ...]] = []
        began = thread_time()
        run(num_steps, lambda: notes.append((process_time(), perf_counter(), thread_time())))
        whole = thread_time() - began
        step = [
            (end - start) / (num_steps - 1) for start, end in zip(notes[0], notes[-1], strict=True)
        ]
        return *step, whole - num_steps * step[2]

    runs = {name: build(work, strategy) for name, build in CONTENDERS.items()}
    for run in runs.values():
        timed(run)
    return {name: partial(timed, run) for name, run in runs.items()}


def saving(num_params: int, strategy: str, folder: str) -> Measures:
    """A synchronous save, an asynchronous one, and what is left of that afterwards."""
    from distributed_contenders import Saving

    one = Saving(num_params, strategy, folder)
    return {"whole": lambda: (one.whole(),), "stall": lambda: (one.stall(), one.wait())}


class Ranks:
    """The processes, each of which has all contenders, so that they differ in nothing else."""

    def __init__(self, build: Callable[..., Measures], *arguments: Any) -> None:
        context, port = get_context("spawn"), _free_port()
        self.connections, self.processes = [], []
        for rank in range(WORLD):
            own, other = context.Pipe()
            process = context.Process(
                target=serve, args=(other, rank, port, build, arguments), daemon=True
            )
            process.start()
            self.connections.append(own)
            self.processes.append(process)
        for connection in self.connections:
            connection.recv()

    def measure(self, name: str) -> list[tuple[float, ...]]:
        for connection in self.connections:
            connection.send(name)
        return [connection.recv() for connection in self.connections]

    def close(self) -> None:
        for connection in self.connections:
            connection.send("")
        for process in self.processes:
            process.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report_loops(workload: str, strategy: str, num_rounds: int) -> None:
    ranks = Ranks(loops, workload, strategy)
    kinds: tuple[str, ...] = ("CPU", "wall", "main")
    times: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in LOOPS} for kind in kinds
    }
    calls: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(num_rounds):
        for name in LOOPS:
            cpu, wall, main, call = zip(*ranks.measure(name), strict=True)
            calls[name].append(sum(call))
            for kind, value in zip(kinds, (sum(cpu), max(wall), sum(main)), strict=True):
                times[kind][name].append(value)
    ranks.close()
    print(
        f"\n{workload}, {strategy}, {WORLD} processes: a step, median of {num_rounds} interleaved "
        "rounds"
    )
    for name in LOOPS:
        told = "   ".join(
            f"{statistics.median(times[kind][name]) * 1e6:8.0f} us {kind}" for kind in kinds
        )
        print(f"  {name:14s} {told}   call {statistics.median(calls[name]) * 1e3:6.1f} ms main")
    for name, base in PAIRS:
        for kind, own in times.items():
            best = min(own[name]) / min(own[base])
            told = (
                f"{ratio(own, name, base)}   fastest {best:.2f}   target <= {TARGETS[workload]:.2f}"
            )
            print(f"  {name:14s} / {base:14s} {kind:4s} {told}", flush=True)


def report_stall(num_params: int, strategy: str, num_rounds: int) -> None:
    whole, stall, behind = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(saving, num_params, strategy, folder)
        for _ in range(num_rounds):
            os.sync()
            whole.append(max(own[0] for own in ranks.measure("whole")))
            os.sync()
            measured = ranks.measure("stall")
            stall.append(max(own[0] for own in measured))
            behind.append(max(own[1] for own in measured))
        ranks.close()
    middle = statistics.median
    relative = middle(own / other for own, other in zip(stall, whole, strict=True))
    print(
        f"\nSaving {num_params * 12 / 1e9:.2f} GB, {strategy}, {WORLD} processes, median of "
        f"{num_rounds} rounds"
    )
    print(f"  torch.save by the first process, synchronous  {middle(whole):7.3f} s")
    print(f"  asynchronous save, what it stalls             {middle(stall):7.3f} s")
    print(
        f"  and goes on behind the training               {middle(behind):7.3f} s   (hashed and "
        "synced to disk)"
    )
    print(
        f"  stall / torch.save                            {relative:7.2f}     target <= "
        f"{STALL:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--workloads", nargs="*", default=["W1", "W2", "W3"])
    parser.add_argument("--strategies", nargs="*", default=["ddp", "fsdp"])
    parser.add_argument("--params", type=float, default=20, help="millions of parameters to save")
    options = parser.parse_args()
    for workload in options.workloads:
        for strategy in options.strategies:
            report_loops(workload, strategy, options.rounds)
    if options.params:
        for strategy in options.strategies:
            report_stall(int(options.params * 1e6), strategy, max(options.rounds // 5, 3))


if __name__ == "__main__":
    main()
