"""How fast a step is, compiled and as it is: a few of both before training, of which nothing stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.random import rng_state, set_rng_state
from ..metrics.meter import Meter
from .keeper import Keeper

if TYPE_CHECKING:
    from .run import TrainingRun
    from .update import OptimizerUpdate

ROUNDS = 5
ROUND_SECONDS = 0.02  # steps are repeated until a round takes about that long
MOST_REPEATS = 50

Step = Callable[[Any], Any]


class Times(NamedTuple):
    """Seconds of an update as it is and compiled, those of compiling, and the median ratio of compiled to eager."""

    eager: float
    compiled: float
    compiling: float
    ratio: float


def time_both(run: TrainingRun, eager: Step, compiled: Step, batch: Any) -> Times:
    """Time both kinds of update in turns; everything is as before afterwards.

    The user's own errors come from the eager step, which goes first.
    """
    with leaving_no_trace(run):
        windows = [_Windows(run, step, batch) for step in (eager, compiled)]
        windows[0].take(1)
        compiling = windows[1].take(1)
        for window in windows:
            window.number = min(max(int(ROUND_SECONDS / window.take(1)), 1), MOST_REPEATS)
        times = [[window.take(window.number) / window.number for window in windows] for _ in range(ROUNDS)]
    as_it_is, as_graph = map(min, zip(*times, strict=True))
    return Times(as_it_is, as_graph, compiling, median(graph / plain for plain, graph in times))


class _Windows:
    """Accumulation windows of one batch, taken by one kind of step."""

    def __init__(self, run: TrainingRun, step: Step, batch: Any) -> None:
        self._run, self._step, self._batch = run, step, batch
        self.number = 1

    def take(self, number: int) -> float:
        """Take so many windows; return the seconds that they took."""
        window, length = self._run.window, self._run.program.accumulate
        _wait(self._run.runtime.device)
        # other programs' time counts on a clock, and on a busy machine it is most of it
        clock = process_time if self._run.runtime.is_host and torch.get_num_threads() == 1 else perf_counter
        began = clock()
        for _ in range(number):
            for position in range(length):
                window.is_last, window.divisor = position == length - 1, float(length)
                self._step(self._batch)
        _wait(self._run.runtime.device)
        return clock() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class _QuietGuard:
    """Stands for the guard while nothing counts: same graph, no consequences."""

    def __init__(self, guard: Any) -> None:
        self.is_final, self.is_immediate = guard.is_final, guard.is_immediate

    def refuse(self, what: str) -> None:
        """Go on."""


@contextmanager
def leaving_no_trace(run: TrainingRun) -> Iterator[None]:
    """Context after which weights, buffers, optimizer state, generators, counters and metrics are as before."""
    update = next(iter(run.updates.by_name.values()))
    keeper, generators, window = Keeper(), rng_state(), copy(run.window)
    program: Any = run.program
    for owner in (program, run.updates, update, *_stateful(program.loss_fn)):
        keeper.keep(owner)
    for module in run.components.modules.values():
        keeper.keep_model(module)
    keeper.keep_optimizer(update.optimizer)
    update.optimizer.state = _copied(update.optimizer)
    _silence(update)
    try:
        with run.phase(Meter()), run.media.muted():
            yield
    finally:
        keeper.restore()
        for name in ("divisor", "is_last", "size", "has_stepped", "stage", "total"):
            setattr(run.window, name, getattr(window, name))
        set_rng_state(generators)
        torch.clear_autocast_cache()


def _silence(update: OptimizerUpdate) -> None:
    """Nothing outside hears of the updates that are tried; the keeper puts back what is replaced here."""
    update.guard = None if update.guard is None else _QuietGuard(update.guard)
    update.listeners = [lambda _: None for _ in update.listeners]
    update.schedulers = []


def _stateful(value: Any) -> list[Any]:
    """A loss function that is an object of the user's with attributes; modules are kept as such."""
    return [value] if hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module) else []


def _copied(optimizer: Optimizer) -> defaultdict[Tensor, Any]:
    """The optimizer's state with copies of its tensors."""
    copies: defaultdict[Tensor, Any] = defaultdict(dict)
    for param, state in optimizer.state.items():
        copies[param] = {name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in state.items()}
    return copies
