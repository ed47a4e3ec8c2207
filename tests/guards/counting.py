"""Counters of what a training step does: Python calls, operators of torch, allocations of
tensors."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright import Trainer
from loopwright.training.steps import open_steps

SOURCE = inspect.getfile(Trainer).removesuffix("trainer.py")
Training = Callable[[int], object]  # trains so many steps
Counting = Callable[[], AbstractContextManager[Counter[str]]]

HOST_SYNCS = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::item",
}


def calls_per_step(train: Training, first: int = 20, number: int = 50) -> Counter[str]:
    """Calls of our own Python functions in a step, by module and name; in the training thread,
    without start and end.

    They are counted from the moment in which step `first` is asked for until `number` steps later.
    A function that is called less often than every second step, as when a second thread is ready,
    is not one of the step.
    """
    counts: Counter[str] = Counter()
    num_steps = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal num_steps
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            num_steps += code is open_steps.__code__
            if first <= num_steps < first + number:
                counts[
                    f"{code.co_filename.removeprefix(SOURCE).removesuffix('.py')}: "
                    f"{code.co_qualname}"
                ] += 1

    sys.setprofile(profile)
    try:
        train(first + number + 10)
    finally:
        sys.setprofile(None)
    assert num_steps >= first + number, f"only {num_steps} steps were asked for"
    return +Counter({name: round(count / number) for name, count in counts.items()})


def python_calls_of_a_step(train: Training, first: int = 20, number: int = 50) -> float:
    """Python calls of a step on average, those of torch included: of more steps, less those of
    fewer."""
    train(1)  # which imports
    counts: list[int] = []
    for num_steps in (first, first + number):
        counts.append(0)

        def profile(frame: Any, event: str, argument: Any) -> None:
            counts[-1] += event == "call"

        sys.setprofile(profile)
        try:
            train(num_steps)
        finally:
            sys.setprofile(None)
    return (counts[1] - counts[0]) / number


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def operators() -> Iterator[Counter[str]]:
    """Context that counts the operators that reach a device, backward passes included, by name."""
    with _Operators() as mode:
        yield mode.counts


@contextmanager
def allocations() -> Iterator[Counter[str]]:
    """Context that counts allocations of tensors' memory; when memory is freed depends on the
    garbage collector."""
    counts: Counter[str] = Counter()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        yield counts
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            counts["allocated"] += event.nbytes() > 0


def per_step(
    build: Callable[[], Training], counting: Counting, steps: tuple[int, int] = (20, 70)
) -> Counter[str]:
    """What one step adds: the difference between a long and a short run, without what is done
    once."""
    build()(2)  # what the first run of a process imports and prepares is not counted
    short, long = (_count(build(), counting, number) for number in steps)
    difference = Counter(
        {name: number - short[name] for name, number in long.items() if number != short[name]}
    )
    number = steps[1] - steps[0]
    uneven = {name: count / number for name, count in difference.items() if count % number}
    assert not uneven, f"Not the same in every step: {uneven}"
    return Counter({name: count // number for name, count in difference.items()})


def _count(train: Training, counting: Counting, steps: int) -> Counter[str]:
    with counting() as counts:
        train(steps)
    return counts


def added(now: Mapping[str, int], before: Mapping[str, int]) -> str:
    """What there is more of and less of than before, one name in a line; for the message of a
    guard."""
    names = sorted({*now, *before}, key=lambda name: (before.get(name, 0) - now.get(name, 0), name))
    changes = [(now.get(name, 0) - before.get(name, 0), name) for name in names]
    lines = [f"  {change:+d}  {name}" for change, name in changes if change]
    return "\n".join([f"{sum(now.values())} instead of {sum(before.values())} per step:", *lines])


def syncs(counts: Mapping[str, int]) -> dict[str, int]:
    """The operators that wait for a device to give a number to the host."""
    return {name: count for name, count in counts.items() if name in HOST_SYNCS}
