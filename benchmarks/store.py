"""What the metrics store costs: a logged scalar in a training loop, opening a large run, and its
curves.

    python benchmarks/store.py [--points 10000000] [--folder FOLDER]

The first part trains a tiny model with and without a run directory, alternately, and divides the
difference of the times by the number of scalars logged; the times include what a run directory
costs besides metrics. The second part writes a run of so many points (once, where a folder is
given) and times what a page asks for, each in a new view.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.demo_runs import make_demo_run
from torch import nn

from loopwright import Callback, StepResult, Trainer
from loopwright.run import MetricsStore, Run, StepRow
from loopwright.run.metrics_view import MetricsView

SCALARS = 10
STEPS = 10_000
CLOCKS = {
    "wall": time.perf_counter,
    "CPU of the training": time.thread_time,
    "CPU of all threads": time.process_time,
}
VALUES = {f"part/{number}": number + 0.5 for number in range(SCALARS - 1)}


class Logging(Callback):
    """Logs nine scalars in every step, beside the loss."""

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        trainer.log_step(VALUES)


def train_seconds(run_dir: Path | None) -> dict[str, float]:
    """The time of some thousand steps: on the wall, of the training thread's CPU, and of the whole
    process's CPU."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 2, 8), torch.randn(STEPS * 2, 1))
    model = nn.Linear(8, 1)
    options: dict[str, Any] = {
        "run_dir": run_dir,
        "callbacks": [Logging()],
        "progress": "silent",
        "seed": 0,
    }
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.MSELoss(), **options)
    gc.collect()
    start = {name: clock() for name, clock in CLOCKS.items()}
    trainer.train(data, 1, batch_size=2)
    return {name: clock() - start[name] for name, clock in CLOCKS.items()}


def cost_in_training(repeats: int) -> None:
    """Other processes make times longer and never shorter: the shortest of many alternating ones
    are compared."""
    kinds: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats + 1):
            for kind, run_dir in zip(kinds, (None, Path(folder) / str(number)), strict=True):
                kind.append(train_seconds(run_dir))
    print(
        f"{STEPS} steps with {SCALARS} scalars each, {repeats} times without and with a run "
        "directory:"
    )
    for name in CLOCKS:
        without, with_run = (sorted(times[name] for times in kind[1:]) for kind in kinds)
        costs = [
            (ours - theirs) / STEPS / SCALARS * 1e6
            for ours, theirs in zip(with_run, without, strict=True)
        ]
        print(
            f"  {name:22} {without[0]:.2f} s and {with_run[0]:.2f} s at best: {costs[0]:.2f} us a "
            f"scalar (of the medians {costs[len(costs) // 2]:.2f} us)"
        )


def cost_of_queueing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = MetricsStore(Path(folder) / "metrics.sqlite")
        values = {f"part/{number}": float(number) + 0.5 for number in range(SCALARS)}
        rows = [StepRow(step, step, 0, step, step / 100, values) for step in range(1, 50_001)]
        start = time.perf_counter()
        for first in range(0, len(rows), 500):
            store.add_steps(rows[first : first + 500])
        queued = time.perf_counter()
        store.close()
        closed = time.perf_counter()
    number = len(rows) * SCALARS
    print(f"queueing alone: {(queued - start) / number * 1e6:.3f} us per scalar")
    print(
        f"writing alone:  {(closed - start) / number * 1e6:.2f} us per scalar, values, summaries "
        "and clock"
    )


def cost_of_reading(folder: Path, points: int) -> None:
    path = folder / f"run-{points}"
    if not (path / "metrics.sqlite").exists():
        start = time.perf_counter()
        make_demo_run(path, steps=points // 5, media=False, epochs=20)
        print(
            f"a run of {points:,} points written in {time.perf_counter() - start:.0f} s,", end=" "
        )
    print(f"{(path / 'metrics.sqlite').stat().st_size / 1e6:.0f} MB")

    def opened() -> object:
        run = Run(path)
        return (
            run.state,
            run.progress,
            run.as_json(),
            run.metrics.names(),
            run.metrics.latest(),
            run.metrics.cursor(),
        )

    shown("opening: state, progress, best, names, last values", opened)
    metrics = path / "metrics.sqlite"
    shown("loss over step", lambda: MetricsView(metrics).curve("loss"))
    for x in ("update", "epoch", "samples", "seconds", "wall", "accuracy"):
        shown(f"loss over {x}", lambda x=x: MetricsView(metrics).curve("loss", x=x))
    for x in ("step", "samples", "wall"):
        whole = MetricsView(metrics).curve("loss", x=x)
        for part in (0.5, 0.01):
            low = whole.places[int(len(whole.places) * 0.3)]
            high = low + (whole.places[-1] - whole.places[0]) * part
            shown(
                f"loss over {x}, {part:.0%} of it",
                lambda x=x, low=low, high=high: MetricsView(metrics).curve(
                    "loss", x=x, first=low, last=high
                ),
            )
    cursor = MetricsView(metrics).cursor()
    shown(
        "nothing new since a cursor",
        lambda: MetricsView(metrics).since(cursor, ["loss", "accuracy"]),
    )


def shown(what: str, action: Callable[[], object], repeats: int = 9) -> None:
    times, cpu = [], []
    for _ in range(repeats):
        start, began = time.perf_counter(), time.thread_time()
        action()
        times.append((time.perf_counter() - start) * 1e3)
        cpu.append((time.thread_time() - began) * 1e3)
    median = statistics.median
    print(
        f"  {what:55} {median(times):7.1f} ms (first {times[0]:.1f}, best {min(times):.1f}; CPU "
        f"{median(cpu):.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument(
        "--folder", type=Path, help="where to keep the run (default: a temporary folder)"
    )
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    cost_of_queueing()
    cost_in_training(options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        cost_of_reading(options.folder or Path(folder), options.points)


if __name__ == "__main__":
    main()
