"""What grows with a run and what does not: steps, memory, places in the data, points stored,
callbacks, parameters.

    python benchmarks/growth.py [--steps 1000000] [--samples 10000000] [--rounds 5] [--only seek
    ...]

Times of steps are CPU times of the process; those of finding a place in the data and of starting a
run are wall times, medians of interleaved rounds. Memory is what the process has resident. What is
measured is printed as it comes. Results are kept in `.bench/growth.json` after each part;
docs/benchmarks.md and its plots are written from there. A short form:

    python benchmarks/growth.py --steps 2000 --samples 100000 --rounds 1 --no-page
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import Callback, StepResult, Trainer
from peers.environments import FOLDER

RESULTS = FOLDER / "growth.json"
NUM_SCALARS = 10
Stepper = Callable[[], float]  # CPU seconds of a step


# A long run: time of a step, memory, and the start of a run with that many points


class EndOfRunError(Exception):
    """The long run ends here, as if it had crashed."""


class Watch(Callback):
    """Logs scalars in every step, and notes time and memory twenty times in a run."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps, self.every, self.step = num_steps, max(num_steps // 20, 1), 0
        self.values = {f"part/{number}": number + 0.5 for number in range(NUM_SCALARS - 1)}
        self.notes: list[tuple[int, float, float]] = []

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        trainer.log_step(self.values)
        if self.step % self.every == 0:
            self.notes.append((self.step, time.process_time(), resident_megabytes()))
            print(f"  step {self.step:,} of {self.num_steps:,}{self._latest()}", flush=True)
        self.step += 1

    def _latest(self) -> str:
        """The time of a step since the last note, and the memory."""
        if len(self.notes) < 2:
            return ""
        before, after = self.notes[-2:]
        return (
            f": {(after[1] - before[1]) / (after[0] - before[0]) * 1e6:.0f} us a step, "
            f"{after[2]:.0f} MB"
        )

    def on_update_end(self, trainer: Trainer) -> None:
        if self.step > self.num_steps:
            raise EndOfRunError


class FirstStep(Callback):
    """Notes when the first step begins, and ends the run there, so that it can be resumed once
    more."""

    began = 0.0

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self.began = time.perf_counter()
        raise EndOfRunError


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def train_long(run_dir: str, num_steps: int, callbacks: Sequence[Callback]) -> float:
    """Train until a callback ends the run, and say when `train` was called."""
    from loopwright.callbacks import Checkpoints

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20_000, 8), torch.randn(20_000, 1))
    model = nn.Linear(8, 1)
    saving = Checkpoints(every_updates=max(num_steps // 4, 1), keep=1)
    options: dict[str, Any] = {
        "run_dir": run_dir,
        "callbacks": [saving, *callbacks],
        "progress": "silent",
        "seed": 0,
    }
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.MSELoss(), **options)
    # the first optimizer has imported what it needs, which takes longer than the start
    began = time.perf_counter()
    with suppress(EndOfRunError):
        trainer.train(data, num_updates=num_steps + 10, batch_size=2)
    return began


def long_run(run_dir: str, num_steps: int) -> dict[str, Any]:
    """In a process of its own: the notes of a run that ends with an exception."""
    torch.set_num_threads(1)
    watch = Watch(num_steps)
    train_long(run_dir, num_steps, [watch])
    pairs = list(pairwise(watch.notes))
    return {
        "step": [after[0] for _, after in pairs],
        "microseconds": [
            (after[1] - before[1]) / (after[0] - before[0]) * 1e6 for before, after in pairs
        ],
        "megabytes": [after[2] for _, after in pairs],
    }


def resumed_start(run_dir: str, num_steps: int) -> dict[str, Any]:
    """In a process of its own: from `train` to the first step of a run that goes on."""
    torch.set_num_threads(1)
    first = FirstStep()
    began = train_long(run_dir, num_steps, [Watch(num_steps * 2), first])
    if not first.began:
        raise RuntimeError(f"{run_dir} was not resumed: no step began.")
    milliseconds = (first.began - began) * 1e3
    print(
        f"  a run with {num_steps * NUM_SCALARS:,} points starts in {milliseconds:.0f} ms",
        flush=True,
    )
    return {"milliseconds": milliseconds}


def measure_steps(options: argparse.Namespace) -> dict[str, Any]:
    """A long run and a short one; then both are resumed, in turns."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        runs = {num_steps: f"{folder}/{num_steps}" for num_steps in (1_000, options.steps)}
        found = [in_process("long_run", name, num_steps) for num_steps, name in runs.items()][-1]
        times: dict[int, list[float]] = {num_steps: [] for num_steps in runs}
        for _ in range(options.rounds):
            for num_steps, name in runs.items():
                times[num_steps].append(
                    in_process("resumed_start", name, num_steps)["milliseconds"]
                )
        size = (Path(runs[options.steps]) / "metrics.sqlite").stat().st_size / 1e6
    starts = {
        num_steps * NUM_SCALARS: statistics.median(taken) for num_steps, taken in times.items()
    }
    return found | {"starts": starts, "store_megabytes": size}


def in_process(function: str, *arguments: Any) -> dict[str, Any]:
    """What a function of this module returns, called in a new process whose lines are shown."""
    program = [sys.executable, __file__, "--call", json.dumps([function, *arguments])]
    last = ""
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("  "):
                print(line, end="", flush=True)
            last = line
    if process.returncode:
        raise RuntimeError(f"{function} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(last)
    return found


# Seeking


def measure_seek(options: argparse.Namespace) -> dict[str, Any]:
    """The time of resuming at several places of an epoch, for tensors and for a Python data set."""
    from checkpoint import Squares, resume_time

    num = options.samples
    kinds = {"TensorDataset": TensorDataset(torch.zeros(num, 1)), "Python data set": Squares(num)}
    places = [int(num * part) // 32 * 32 for part in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999)]
    times: dict[str, dict[int, list[float]]] = {
        kind: {place: [] for place in places} for kind in kinds
    }
    for _ in range(options.rounds):
        for kind, data in kinds.items():
            for place in places:
                times[kind][place].append(resume_time(data, place) * 1e3)
    for kind, found in times.items():
        listed = ", ".join(
            f"{place:,}: {statistics.median(taken):.1f} ms" for place, taken in found.items()
        )
        print(f"  {kind}, at {listed}", flush=True)
    return {
        "samples": places,
        **{
            kind: [statistics.median(found[place]) for place in places]
            for kind, found in times.items()
        },
    }


# Step time against how many there are of something: each is a pair of ours and a hand-written loop


class Clock(Callback):
    """CPU time of a step, without the start and the end of the training."""

    def __init__(self, num_steps: int) -> None:
        self.last, self.step, self.began, self.ended = num_steps - 1, 0, 0.0, 0.0

    def on_train_start(self, trainer: Trainer) -> None:
        self.step = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if self.step == 2:
            self.began = time.process_time()
        elif self.step == self.last:
            self.ended = time.process_time()
        self.step += 1

    def per_step(self) -> float:
        return (self.ended - self.began) / (self.last - 2)


class Idle(Callback):
    """Has no event in the loop."""


class Observing(Callback):
    """Does nothing, in every step."""

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        pass


class Logging(Callback):
    """Logs so many values in every step."""

    def __init__(self, number: int) -> None:
        self.values = {f"part/{index}": index + 0.5 for index in range(number)}

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        trainer.log_step(self.values)


def ours(trainer: Trainer, data: TensorDataset, clock: Clock) -> Stepper:
    def run() -> float:
        trainer.train(data, num_updates=clock.last + 1, batch_size=8)
        return clock.per_step()

    return run


def by_hand(step: Callable[[Tensor, Tensor], None], data: TensorDataset, num_steps: int) -> Stepper:
    """The tight loop: batches indexed from the tensors."""

    def run() -> float:
        inputs, targets = data.tensors
        order = torch.randint(len(inputs), (num_steps, 8))
        began = 0.0
        for number, chosen in enumerate(order):
            if number == 3:
                began = time.process_time()
            step(inputs[chosen], targets[chosen])
        return (time.process_time() - began) / (num_steps - 3)

    return run


def small_data(width: int = 8) -> TensorDataset:
    return TensorDataset(torch.randn(2_048, width), torch.randn(2_048, 1))


def with_callbacks(
    number: int, kind: Callable[..., Callback], run_dir: str | None = None
) -> dict[str, Stepper]:
    num_steps = 400 if number < 500 else 150
    model, data, clock = nn.Linear(8, 1), small_data(), Clock(num_steps)
    callbacks = (
        [clock, Logging(number)] if kind is Logging else [clock, *(kind() for _ in range(number))]
    )
    options: dict[str, Any] = {"callbacks": callbacks, "progress": "silent", "run_dir": run_dir}
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.MSELoss(), **options)
    return {"loopwright": ours(trainer, data, clock)}


class Many(nn.Module):
    """A linear function whose weights are in many tensors of four."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(4) for _ in range(number))
        self.kept = list(self.parts)

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs @ torch.cat(self.kept)).unsqueeze(1)


def with_parameters(number: int) -> dict[str, Stepper]:
    num_steps, adam = max(min(400, 50_000 // number), 12), partial(torch.optim.Adam, lr=1e-3)
    clock, loss_fn = Clock(num_steps), nn.MSELoss()
    data = TensorDataset(torch.randn(64, 4 * number), torch.randn(64, 1))
    trainer = Trainer(Many(number), adam, loss_fn, callbacks=[clock], progress="silent")
    model = Many(number)
    optimizer = adam(model.parameters(), fused=True)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()

    return {
        "loopwright": ours(trainer, data, clock),
        "hand-written, fused": by_hand(step, data, num_steps),
    }


class OfMany(Trainer):
    """Updates each of several models with an optimizer of its own."""

    def __init__(self, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(**options)

    def configure_models(self) -> None:
        self.models_of_it = nn.ModuleList(nn.Linear(8, 1) for _ in range(self.number))

    def configure_optimizers(self) -> None:
        self.pairs = [
            (model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in self.models_of_it
        ]
        for index, (_, optimizer) in enumerate(self.pairs):
            setattr(self, f"optimizer_{index}", optimizer)

    def train_step(self, batch: Any) -> Tensor:
        inputs, targets = batch
        for model, optimizer in self.pairs:
            loss = nn.functional.mse_loss(model(inputs), targets)
            self.update(loss, optimizer)
        return loss


def with_optimizers(number: int) -> dict[str, Stepper]:
    num_steps, data = max(400 // number, 30), small_data()
    clock = Clock(num_steps)
    trainer = OfMany(number, callbacks=[clock], progress="silent")
    models = [nn.Linear(8, 1) for _ in range(number)]
    pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]

    def step(inputs: Tensor, targets: Tensor) -> None:
        for model, optimizer in pairs:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()

    return {
        "loopwright": ours(trainer, data, clock),
        "hand-written": by_hand(step, data, num_steps),
    }


def sweep(
    build: Callable[[int], dict[str, Stepper]], numbers: Sequence[int], num_rounds: int
) -> dict[str, Any]:
    """Microseconds of a step for each number: the median of interleaved rounds."""
    steppers = {number: build(number) for number in numbers}
    times: dict[str, dict[int, list[float]]] = {}
    for round_number in range(num_rounds + 1):
        for number, kinds in steppers.items():
            for kind, run in kinds.items():
                taken = run() * 1e6
                if round_number:  # the first one warms up
                    times.setdefault(kind, {}).setdefault(number, []).append(taken)
    medians = {
        kind: [statistics.median(found[number]) for number in numbers]
        for kind, found in times.items()
    }
    for kind, found in medians.items():
        listed = ", ".join(
            f"{number:,}: {taken:.0f} us" for number, taken in zip(numbers, found, strict=True)
        )
        print(f"  {kind}, a step with {listed}", flush=True)
    return {"number": list(numbers), **medians}


def measure_callbacks(options: argparse.Namespace) -> dict[str, Any]:
    numbers = (0, 1, 10, 100, 1000)
    idle = sweep(lambda number: with_callbacks(number, Idle), numbers, options.rounds)
    observing = sweep(lambda number: with_callbacks(number, Observing), numbers, options.rounds)
    return {
        "number": numbers,
        "idle": idle["loopwright"],
        "with an event in every step": observing["loopwright"],
    }


def measure_metrics(options: argparse.Namespace) -> dict[str, Any]:
    numbers = (1, 10, 100, 1000)
    with tempfile.TemporaryDirectory() as folder:
        stored = sweep(
            lambda number: with_callbacks(number, Logging, f"{folder}/{number}"),
            numbers,
            options.rounds,
        )
    plain = sweep(lambda number: with_callbacks(number, Logging), numbers, options.rounds)
    return {
        "number": numbers,
        "with a run directory": stored["loopwright"],
        "without one": plain["loopwright"],
    }


def measure_optimizers(options: argparse.Namespace) -> dict[str, Any]:
    return sweep(with_optimizers, (1, 2, 4, 8, 16, 32), options.rounds)


def measure_parameters(options: argparse.Namespace) -> dict[str, Any]:
    return sweep(with_parameters, (10, 100, 1000, 10_000), options.rounds)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "callbacks": measure_callbacks,
    "metrics": measure_metrics,
    "optimizers": measure_optimizers,
    "parameters": measure_parameters,
    "seek": measure_seek,
    "steps": measure_steps,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument(
        "--page-only",
        action="store_true",
        help="write plots and page from the results that are there",
    )
    parser.add_argument(
        "--no-page", action="store_true", help="print only: keep no results, write no page"
    )
    # how it calls itself in a process of its own
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        function, *arguments = json.loads(options.call)
        print(json.dumps(globals()[function](*arguments)))
        return
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for part in [] if options.page_only else options.only:
        began = time.monotonic()
        print(f"{part} ...", flush=True)
        found = PARTS[part](options)
        if not options.no_page:
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(results | {part: found}, indent=1))
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
    if options.no_page:
        return
    from page import write_stored

    write_stored()


if __name__ == "__main__":
    main()
