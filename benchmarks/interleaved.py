"""Runs contenders in rounds, one after the other and again, each in a process of its own on a terminal of its own."""

from __future__ import annotations

import os
import pty
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import process_time


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median over rounds of one contender's time to another's, with the middle half of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f}  ({self.low:.2f}-{self.high:.2f})"


def serve(connection: Connection, terminal: str, name: str, workload: str) -> None:
    """In the contender's process: time rounds of steps, in CPU seconds per step, whenever asked."""
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    os.dup2(descriptor, 1)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    from contenders import CONTENDERS
    from door_contenders import DOORS
    from workloads import WORKLOADS

    work = WORKLOADS[workload]
    run = (CONTENDERS | DOORS)[name](work)
    run(max(work.num_steps // 4, 2))
    connection.send("ready")
    while connection.recv():
        before = process_time()
        run(work.num_steps)
        connection.send((process_time() - before) / work.num_steps)


class Contender:
    """A process that trains when told to; what it draws on its terminal is read and dropped."""

    def __init__(
        self, name: str, workload: str, serve: Callable[..., None] = serve, has_children: bool = False
    ) -> None:
        master, slave = pty.openpty()
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        arguments = (other, os.ttyname(slave), name, workload)
        self.process = context.Process(target=serve, args=arguments, daemon=not has_children)
        threading.Thread(target=_drain, args=(master,), daemon=True).start()
        self.process.start()
        other.close()  # so that a process that dies is heard of
        self.connection.recv()

    def time_round(self) -> float:
        self.connection.send(True)
        return float(self.connection.recv())

    def close(self) -> None:
        self.connection.send(False)
        self.process.join()


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        return


def measure(names: Sequence[str], workload: str, num_rounds: int) -> dict[str, list[float]]:
    """CPU seconds per step, a list of rounds for each contender."""
    contenders = {name: Contender(name, workload) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(num_rounds):
        for name, contender in contenders.items():
            times[name].append(contender.time_round())
    for contender in contenders.values():
        contender.close()
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> Ratio:
    ratios = sorted(own / other for own, other in zip(times[name], times[base], strict=True))
    quarter = len(ratios) // 4
    return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])
