"""What data costs: W4, a Python data set, against a hand-written loop with a `DataLoader`, with 0
and 2 workers.

    python benchmarks/data.py [--rounds 11] [--workloads plain augmented] [--parts]

A sample is 3x16x16, a batch has 64 of them, the model is a small MLP with the user's own SGD in
both loops. Measured is CPU time per step, of the training process and of it together with its
workers; only ratios within one run mean anything. `bar` is the trainer as a new user runs it
(progress bar, run directory, guard), `bare` has all of it off. With `--parts` the time without
workers is divided into what a whole call of `train` costs, and per step into data, all else in the
training thread, and other threads; reading the clock adds about 2 µs to a step.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time, thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from interleaved import Contender, ratio

NUM_STEPS = {0: 1024, 2: 128}  # of a round, by number of workers
PART_STEPS = (64, 512)  # of a short and a long call, whose difference is that of steps alone
BATCH_SIZE = 64
TARGET = 1.00


class Plain(Dataset[Any]):
    """Samples of 3x16x16 with a class each, in memory."""

    def __init__(self) -> None:
        self.inputs, self.targets = torch.randn(4096, 3, 16, 16), torch.randint(10, (4096,))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        return self.inputs[index], self.targets[index]


class Augmented(Plain):
    """Flips and noise drawn from torch's generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        image = self.inputs[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn(3, 16, 16), self.targets[index]


class AugmentedByNumpy(Plain):
    """Flips and a shift drawn from numpy's generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        image = self.inputs[index]
        if np.random.rand() < 0.5:
            image = image.flip(-1)
        return image.roll(int(np.random.randint(-2, 3)), -1), self.targets[index]


class AugmentedByPython(Plain):
    """Flips and a shift drawn from python's generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        image = self.inputs[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image.roll(random.randint(-2, 2), -1), self.targets[index]


class Labelled(Plain):
    """Samples as a dict of an image and a number, as image data sets have it."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = self.targets.tolist()

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.labels[index]


DATA = {
    "plain": Plain,
    "augmented": Augmented,
    "augmented-numpy": AugmentedByNumpy,
    "augmented-python": AugmentedByPython,
    "labelled": Labelled,
}
DEFAULT = ["plain", "augmented"]


def build() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def naive(loader: DataLoader[Any]) -> Callable[[int], None]:
    model, optimizer, loss_fn = build()

    def run(num_steps: int) -> None:
        done, total = 0, 0.0
        while done < num_steps:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = loss_fn(model(inputs), targets)
                loss.backward()
                optimizer.step()
                total += loss.item()
                done += 1

    return run


def ours(loader: DataLoader[Any], is_bare: bool) -> Callable[[int], None]:
    from loopwright import Trainer
    from loopwright.callbacks import NonFiniteGuard

    trainer = Trainer(
        *build(),
        callbacks=[NonFiniteGuard("off")] if is_bare else [],
        progress="silent" if is_bare else "bar",
        run_dir=None if is_bare else Path(tempfile.mkdtemp()) / "run",
    )
    return lambda num_steps: trainer.train(loader, num_updates=num_steps) and None


def times() -> tuple[float, float]:
    """CPU seconds of this process, and of its ended children as well."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = process_time()
    return own, own + children.ru_utime + children.ru_stime


class Timed:
    """A loader whose iterator adds the CPU time of each batch to `seconds`."""

    seconds = 0.0

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        batches = iter(self.loader)
        while (batch := timed(next, batches, None)) is not None:
            yield batch


def timed(read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    before = thread_time()
    result = read(*arguments, **options)
    Timed.seconds += thread_time() - before
    return result


def measured(run: Callable[[int], None], num_steps: int) -> tuple[float, float, float]:
    """CPU seconds of some steps: of the process, of its main thread, and there on data."""
    Timed.seconds, process, thread = 0.0, process_time(), thread_time()
    run(num_steps)
    return process_time() - process, thread_time() - thread, Timed.seconds


def serve_parts(connection: Connection, name: str, loader: DataLoader[Any]) -> None:
    from loopwright.data.indexed import IndexedStream

    take = IndexedStream.take
    IndexedStream.take = lambda *arguments: timed(take, *arguments)  # type: ignore[method-assign]
    run = naive(Timed(loader)) if name == "naive" else ours(loader, is_bare=name == "bare")  # type: ignore[arg-type]
    run(64)
    connection.send("ready")
    while connection.recv():
        connection.send([measured(run, num_steps) for num_steps in PART_STEPS])


def serve(connection: Connection, name: str, workload: str, num_checked: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, workers, *parts = workload.split("/")
    # in a spawned process workers would be spawned, too, and spend a second on importing torch
    fork = {"multiprocessing_context": "fork"} if int(workers) else {}
    loader = DataLoader(
        DATA[kind](), batch_size=BATCH_SIZE, shuffle=True, num_workers=int(workers), **fork
    )
    if parts:
        serve_parts(connection, name, loader)
        return
    run = naive(loader) if name == "naive" else ours(loader, is_bare=name == "bare")
    num_steps = NUM_STEPS[int(workers)]
    run(num_steps)
    connection.send("ready")
    while connection.recv():
        before = times()
        run(num_steps)
        connection.send(
            [(now - then) / num_steps for now, then in zip(times(), before, strict=True)]
        )


def report_parts(kind: str, num_rounds: int) -> None:
    contenders = {
        name: Contender(name, f"{kind}/0/parts", module="data") for name in ("naive", "bar", "bare")
    }
    rounds: dict[str, list[Any]] = {name: [] for name in contenders}
    for _ in range(num_rounds):
        for name, contender in contenders.items():
            contender.connection.send(True)
            rounds[name].append(contender.connection.recv())
    print(f"\nW4 {kind}, 0 workers, in parts: {num_rounds} interleaved rounds, medians")
    few, many = PART_STEPS
    for name, contender in contenders.items():
        contender.close()
        calls = zip(*rounds[name], strict=True)
        short, long = (
            [statistics.median(column) for column in zip(*call, strict=True)] for call in calls
        )
        process, thread, data = (
            (b - a) / (many - few) * 1e6 for a, b in zip(short, long, strict=True)
        )
        call = short[0] * 1e3 - few * process / 1e3
        print(
            f"  {name:6s} a step {process:6.0f} µs: data {data:6.0f}, else {thread - data:6.0f}, "
            f"other threads {process - thread:4.0f}; a call {call:5.1f} ms, which is "
            f"{call * 1e3 / NUM_STEPS[0]:4.0f} µs for each of {NUM_STEPS[0]} steps",
            flush=True,
        )


def report(workload: str, num_rounds: int) -> None:
    contenders = {
        name: Contender(name, workload, module="data") for name in ("naive", "bar", "bare")
    }
    main: dict[str, list[float]] = {name: [] for name in contenders}
    total: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(num_rounds):
        for name, contender in contenders.items():
            contender.connection.send(True)
            own, everything = contender.connection.recv()
            main[name].append(own)
            total[name].append(everything)
    for contender in contenders.values():
        contender.close()
    print(f"\nW4 {workload} workers: {num_rounds} interleaved rounds, median (middle half)")
    for name in contenders:
        cost = (
            f"{statistics.median(main[name]) * 1e6:6.0f} µs, with workers "
            f"{statistics.median(total[name]) * 1e6:6.0f}"
        )
        print(f"  {name:6s} {cost}", end="")
        if name != "naive":
            print(
                f"   main {ratio(main, name, 'naive')}  total {ratio(total, name, 'naive')}  "
                f"target <= {TARGET}",
                end="",
            )
        print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--workloads", nargs="*", default=DEFAULT, choices=list(DATA))
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2], choices=[0, 2])
    parser.add_argument(
        "--parts",
        action="store_true",
        help="what of the time without workers is data, step and call",
    )
    options = parser.parse_args()
    for kind in options.workloads:
        if options.parts:
            report_parts(kind, options.rounds)
            continue
        for workers in options.workers:
            report(f"{kind}/{workers}", options.rounds)


if __name__ == "__main__":
    main()
