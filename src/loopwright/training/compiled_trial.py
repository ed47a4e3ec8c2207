"""How fast a step is, compiled and as it is: a few of both before training, of which nothing
stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.containers import map_tensors
from ..data.random import rng_state, set_rng_state
from ..metrics.meter import Meter
from .keeper import Keeper

if TYPE_CHECKING:
    from .run import TrainingRun
    from .update import OptimizerUpdate

FEWEST_ROUNDS = 5
MOST_ROUNDS = 25
TRIAL_SECONDS = 5.0  # after which the fewest rounds are enough
ROUND_SECONDS = 0.02  # steps are repeated until a round takes about that long
MOST_REPEATS = 50

Step = Callable[[Any], Any]
# seconds of an update as it is and compiled, measured one after the other
Pair = tuple[float, float]


class Times(NamedTuple):
    """Median seconds of an update as it is and compiled, those of compiling, and what `is_faster`
    says."""

    eager: float
    compiled: float
    compiling: float
    is_faster: bool | None


def time_both(run: TrainingRun, eager: Step, compiled: Step, batch: Any, factor: float) -> Times:
    """Time both kinds of update in turns, until it is clear whether compiled ones take less than
    `factor` of the time.

    Everything is as before afterwards. The user's own errors come from the eager step, which goes
    first.
    """
    with leaving_no_trace(run):
        windows = [_Windows(run, step, batch) for step in (eager, compiled)]
        windows[0].take(1)
        # the C++ compiler is a process of its own, whose time this one's does not have
        began = perf_counter()
        windows[1].take(1)
        compiling = perf_counter() - began
        for window in windows:
            window.number = min(max(int(ROUND_SECONDS / window.take(1)), 1), MOST_REPEATS)
        pairs: list[Pair] = []
        end = perf_counter() + TRIAL_SECONDS
        while (
            len(pairs) < (MOST_ROUNDS if perf_counter() < end else FEWEST_ROUNDS)
            and is_faster(pairs, factor) is None
        ):
            pairs.append(_pair(windows, is_swapped=len(pairs) % 2 == 1))
    as_it_is, as_graph = map(median, zip(*pairs, strict=True))
    return Times(as_it_is, as_graph, compiling, is_faster(pairs, factor))


def _pair(windows: Sequence[_Windows], *, is_swapped: bool) -> Pair:
    took = [
        window.take(window.number) / window.number
        for window in (windows[::-1] if is_swapped else windows)
    ]
    return (took[1], took[0]) if is_swapped else (took[0], took[1])


def is_faster(pairs: Sequence[Pair], factor: float) -> bool | None:
    """Whether compiled updates are faster in clearly more than half of the rounds; None while that
    is not clear.

    Rounds are counted and times are not added up: one that another program has interrupted counts
    like any other.
    """
    wins = sum(compiled < factor * eager for eager, compiled in pairs)
    number = len(pairs)
    lead = 2 * wins - number
    return lead > 0 if number >= FEWEST_ROUNDS and lead * lead >= 4 * number else None


class _Windows:
    """Accumulation windows of one batch, taken by one kind of step."""

    def __init__(self, run: TrainingRun, step: Step, batch: Any) -> None:
        self._run = run
        self._step = step
        self._batch = batch
        self.number = 1

    def take(self, number: int) -> float:
        """Take so many windows; return the seconds that they took."""
        window = self._run.window
        length = self._run.program.accumulate
        # a step may write into its batch, which the first step of the run needs as it is
        batches = iter([map_tensors(Tensor.clone, self._batch) for _ in range(number * length)])
        _wait(self._run.runtime.device)
        # other programs' time counts on a clock, and on a busy machine it is most of it
        clock = (
            process_time
            if self._run.runtime.is_host and torch.get_num_threads() == 1
            else perf_counter
        )
        began = clock()
        for _ in range(number):
            for position in range(length):
                window.is_last, window.divisor = position == length - 1, float(length)
                self._step(next(batches))
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
        self.is_final = guard.is_final
        self.is_immediate = guard.is_immediate

    def refuse(self, what: str) -> None:
        """Go on."""

    def name_of(self, param: torch.nn.Parameter) -> str:
        return "a parameter"


@contextmanager
def leaving_no_trace(run: TrainingRun) -> Iterator[None]:
    """Context after which weights, buffers, optimizer state, generators, counters and metrics are
    as before."""
    update = next(iter(run.updates.by_name.values()))
    keeper = Keeper()
    generators = rng_state()
    window = copy(run.window)
    program: Any = run.program
    for owner in (program, run.updates, update, update.epoch, *_stateful(program.loss_fn)):
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
    """Nothing outside hears of the updates that are tried; the keeper puts back what is replaced
    here."""
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
        copies[param] = {
            name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in state.items()
        }
    return copies
