"""Kills training runs at random moments, over random combinations, and compares each with its run
that was left alone.

Every third end is not SIGKILL but SIGTERM or SIGINT to the whole process group, workers included:
the program must save and leave with 143 or 130 (or be through, or not yet have begun to train).

python -m tests.crash.torture --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from .crashing import (
    WORKERS,
    Crashes,
    Processes,
    differing,
    forking,
    kill_at_random,
    options_of,
    signal_at_random,
)
from .filesystems import other_filesystem


def random_choice(rng: random.Random) -> dict[str, Any]:
    """A combination of what a program can be asked for."""
    interface = rng.choice(["native", "native", "lifecycle", "simple"])
    choice: dict[str, Any] = {
        "interface": interface,
        "data": rng.choice(["map", "map", "iterable"]),
        "schedule": rng.choice(["step", "cycle"]),
        "patience": rng.choice([1, 50]),
        "every": rng.randint(1, 4),
    }
    if interface != "simple":
        choice["accumulate"] = rng.randint(1, 3)
    if interface == "native":
        choice["precision"] = rng.choice(["fp32", "bf16", "fp16"])
        choice["calls"] = rng.choice(["one", "one", "epochs", "updates"])
    return choice


class Torturer:
    """One of the processes that share the work."""

    def __init__(self, seed: int, folders: list[Path], num_kills: int, counter: Any) -> None:
        self.rng = random.Random(seed)
        self.folders = folders
        self.num_kills = num_kills
        self.counter = counter

    def run(self) -> None:
        number = 0
        while self.counter.value < self.num_kills:
            number += 1
            folder = self.folders[number % len(self.folders)] / f"{os.getpid()}-{number}"
            folder.mkdir()
            self.torture(folder, random_choice(self.rng))

    def torture(self, folder: Path, choice: dict[str, Any]) -> None:
        """A run of this kind, killed several times; what remains of it stays there if it is not the
        same."""
        options, label = options_of(choice), " ".join(map(str, choice.values()))
        try:
            processes = Processes(folder)
            started = time.monotonic()
            expected = processes.run(str(folder / "whole"), *options).digest
            seconds = time.monotonic() - started
            crashes = Crashes(
                processes, folder / "run", options, lambda line: self.tell(f"{label} | {line}")
            )
            for _ in range(self.rng.randint(3, 8)):
                if self.counter.value >= self.num_kills:
                    break
                end = signal_at_random if self.rng.random() < 1 / 3 else kill_at_random
                end(crashes, self.rng, *self.workers(choice), seconds=seconds)
            parts = differing(crashes.finish(*self.workers(choice)), expected)
            assert not parts, f"not the same run: {', '.join(parts)}"
            shutil.rmtree(folder)
        except Exception:
            print(f"FAILED in {folder}: {' '.join(options)}\n{traceback.format_exc()}", flush=True)
            raise SystemExit(1) from None

    def workers(self, choice: dict[str, Any]) -> list[str]:
        """Another number of workers every time; iterable data sets are read in one process."""
        return [] if choice["data"] == "iterable" else self.rng.choice(WORKERS)

    def tell(self, line: str) -> None:
        with self.counter.get_lock():
            self.counter.value += line.endswith(("killed", "signalled"))
            print(f"kill {self.counter.value:3d} of {self.num_kills} | {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    started = time.monotonic()
    same = Path(tempfile.mkdtemp(prefix="loopwright-torture-"))
    print(f"seed {options.seed}, {options.kills} kills, in {same}", flush=True)
    with other_filesystem(same / "other") as other:
        print(
            f"and on another filesystem, in {other}" if other else "no other filesystem can be had",
            flush=True,
        )
        counter = forking.Value("i", 0)
        folders = [same, other] if other else [same]
        seeds = [options.seed + job for job in range(options.jobs)]
        jobs = [
            forking.Process(target=Torturer(seed, folders, options.kills, counter).run)
            for seed in seeds
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        is_sound = not any(job.exitcode for job in jobs)
        result = "every run was the same in the end" if is_sound else "FAILED: see above"
        print(
            f"{counter.value} kills in {time.monotonic() - started:.0f} s, seed {options.seed}: "
            f"{result}",
            flush=True,
        )
    if is_sound:
        shutil.rmtree(same)
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
