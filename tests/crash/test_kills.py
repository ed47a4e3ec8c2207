"""Runs that are really killed, several times and at any moment, come to the very same end as those
left alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .crashing import WORKERS, Crashes, Processes, differing, kill_at_random

# Moments count from the start of a process: steps in the middle of a window, of an epoch and of an
# evaluation, the
# ends of epochs, and file operations (of writing a checkpoint, a kept model or run.json, or of
# removing an old one).
NATIVE = ["step:2", "file:30", "step:6", "eval:2", "epoch:1", "file:9", "end:1"]
PROGRAMS = {
    "native": (["--precision", "fp16", "--schedule", "cycle", "--accumulate", "2"], NATIVE),
    "native iterable": (
        ["--data", "iterable", "--precision", "bf16", "--accumulate", "3"],
        ["eval:4", *NATIVE[3:]],
    ),
    "native stopped early": (
        ["--patience", "1", "--every", "1", "--epochs", "6"],
        ["file:70", "step:5", "end:1"],
    ),
    "lifecycle": (
        ["--interface", "lifecycle", "--accumulate", "2"],
        ["step:5", "file:20", "epoch:1", "eval:2"],
    ),
    "lifecycle iterable": (
        ["--interface", "lifecycle", "--data", "iterable", "--schedule", "cycle"],
        ["file:25", "eval:5"],
    ),
    "lifecycle stopped early": (
        ["--interface", "lifecycle", "--patience", "1", "--epochs", "6"],
        ["step:5", "end:1"],
    ),
    "simple": (
        ["--interface", "simple", "--schedule", "cycle"],
        ["step:10", "file:13", "eval:2", "end:1"],
    ),
    "simple iterable": (
        ["--interface", "simple", "--data", "iterable", "--patience", "1"],
        ["file:22", "epoch:1"],
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_killed_at_any_moment_is_the_same_run(
    program: str, processes: Processes, other_place: Path
) -> None:
    """Each restart has another number of workers, persistent or not."""
    options, moments = PROGRAMS[program]
    is_iterable = "iterable" in options
    workers = cycle([[]] if is_iterable else WORKERS)
    folder = other_place / program
    expected = processes.run(str(folder / "whole"), *options).digest
    crashes = Crashes(processes, folder / "cut", options)
    for moment in moments:
        crashes.kill_at(moment, *next(workers))
    assert crashes.num_kills >= len(moments) - 1
    assert differing(crashes.finish(*next(workers)), expected) == []


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder where the system has its temporary files, unlike those of the other tests."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_random_moments_on_the_filesystem_of_temporary_files(
    processes: Processes, on_disk: Path
) -> None:
    rng = random.Random(20)  # `make torture` has others every time
    options = ["--precision", "bf16", "--accumulate", "2"]
    expected = processes.run(str(on_disk / "whole"), *options).digest
    crashes = Crashes(processes, on_disk / "cut", options, print)
    for _ in range(5):
        kill_at_random(crashes, rng, *rng.choice(WORKERS))
    assert differing(crashes.finish(), expected) == []


@pytest.mark.parametrize("calls", ["epochs", "updates"])
def test_two_calls_of_train_that_are_killed_equal_one_long_one(
    calls: str, processes: Processes, other_place: Path
) -> None:
    options = ["--schedule", "cycle", "--accumulate", "2"]
    expected = processes.run(str(other_place / calls / "whole"), *options).digest
    crashes = Crashes(processes, other_place / calls / "cut", [*options, "--calls", calls])
    for moment in ("step:5", "file:30", "eval:3", "step:4"):
        crashes.kill_at(moment)
    assert crashes.num_kills >= 3
    assert differing(crashes.finish(), expected) == []
