"""`compile="step"`: the training step as graphs, where times of both kinds of step before training
show that these are faster.

`calls` takes a step by graphs, `graph` is what torch traces.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from functools import partial
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..._torch_compat.compiling import failed_to_compile
from ...data.containers import map_tensors
from ...data.random import rng_state, set_rng_state
from ...metrics.meter import Meter
from ...text import counted, duration
from ..restore import Keeper
from .calls import CompiledCalls, NotCompilableError, find_obstacle

if TYPE_CHECKING:
    from ..run import TrainingRun

MOST_RECOMPILATIONS = 8  # after which a run goes on without graphs
FASTER = 0.97  # of the time of an eager step: with less to gain, the step stays as it is
ROUNDS = 9
WINS = 7  # of the rounds, so that one that another program interrupts counts like any other
ROUND_SECONDS = 0.02  # steps are repeated until a round takes about that long
MOST_REPEATS = 50

Step = Callable[[Any], Any]


class CompiledStep:
    """What a run with `compile="step"` has decided, and the graphs that it takes steps by.

    The decision is made before the first step, from times of both kinds of step, and saved: a run
    never changes its mind because of a clock. It gives up graphs for good where compiling fails, or
    where it does not come to an end.
    """

    def __init__(self) -> None:
        self.choice: Literal["compiled", "eager"] | None = None
        self.reason = ""  # for the choice
        # the function and a digest of each graph of this run, also of earlier processes
        self.graphs: list[str] = []
        self.seconds = 0.0  # of compiling in this run, also in earlier processes
        self._calls: CompiledCalls | None = None
        self._times: Counter[str] = Counter()  # how often this process has compiled each graph

    @property
    def num_recompilations(self) -> int:
        """Graphs that were compiled for a function that had one."""
        return len(self.graphs) - len({graph.split()[0] for graph in self.graphs})

    def step_function(self, run: TrainingRun) -> Step:
        """Return what takes the steps of an epoch."""
        return run.program.train_step if self.choice == "eager" else partial(self._step, run)

    def _step(self, run: TrainingRun, batch: Any) -> Any:
        if self._calls is None and self.choice != "eager":
            self._begin(run, batch)
        calls = self._calls
        if calls is None:
            return run.program.train_step(batch)
        before = self._times.total()
        began = monotonic()
        try:
            result = calls(batch)
        except Exception as error:
            self._give_up_after(run, error)
            return run.program.train_step(batch)
        if self._times.total() != before:
            self._note_graph(run, monotonic() - began)
        if calls.failure is not None:
            self._give_up_after(run, calls.failure)
        return result

    def _begin(self, run: TrainingRun, batch: Any) -> None:
        """Choose, before the first step of this process; a choice that was made before is kept."""
        if (obstacle := find_obstacle(run)) is not None:
            self._give_up(run, obstacle)
            return
        calls = CompiledCalls(run, self._add_graph)
        run.say("Compiling the training step (the first time takes up to a minute) ...")
        began = monotonic()
        if self.choice is None:
            self._measure(run, calls, batch)
        if self.choice == "compiled":
            self._calls = calls
        _leave_out(run, monotonic() - began)

    def _measure(self, run: TrainingRun, calls: CompiledCalls, batch: Any) -> None:
        """Time both kinds of update in turns; everything is as before afterwards.

        The user's own errors come from the eager step, which goes first.
        """

        def compiled_step(batch: Any) -> Any:
            result = calls(batch)
            if self.num_recompilations:  # for the same batch
                raise NotCompilableError(
                    "it would be compiled again in every step: it depends on what changes in each, "
                    "such as a counter, or a list or buffer that grows; keep it in a tensor"
                )
            return result

        take = [
            partial(_seconds, run, step, batch) for step in (run.program.train_step, compiled_step)
        ]
        rounds: list[list[float]] = []
        try:
            with leaving_no_trace(run):
                take[0](1)
                # the C++ compiler is a process of its own, whose time this one's does not have
                began = perf_counter()
                take[1](1)
                self.seconds = perf_counter() - began
                repeats = [min(max(int(ROUND_SECONDS / one(1)), 1), MOST_REPEATS) for one in take]
                for _ in range(ROUNDS):
                    rounds.append([one(n) / n for one, n in zip(take, repeats, strict=True)])
        except Exception as error:
            if not isinstance(error, NotCompilableError):
                self.graphs.clear()
            self._give_up_after(run, error)
            return
        calls.forget()
        eager, compiled = (median(times) for times in zip(*rounds, strict=True))
        times = f"{duration(compiled)} per update compiled, {duration(eager)} without compiling"
        if sum(graph < FASTER * plain for plain, graph in rounds) < WINS:
            self._give_up(run, f"that would not be clearly faster ({times})")
            return
        self.choice = "compiled"
        self.reason = times
        run.say(f"The step is compiled: {times} (compiled in {self.seconds:.1f} s).")
        run.note("compiled", f"compiled: {times}", **self.facts())

    def _add_graph(self, graph: str) -> None:
        """Note a graph; one that this process compiles again is another one, since torch has found
        a difference."""
        self._times[graph] += 1
        graph = graph if self._times[graph] == 1 else f"{graph}.{self._times[graph]}"
        if graph not in self.graphs:
            self.graphs.append(graph)

    def _note_graph(self, run: TrainingRun, seconds: float) -> None:
        self.seconds += seconds
        _leave_out(run, seconds)
        run.note("compiled", f"graph {len(self.graphs)} in {seconds:.1f} s", **self.facts())
        if self.num_recompilations > MOST_RECOMPILATIONS:
            again = counted(self.num_recompilations, "time")
            self._give_up(
                run,
                f"it was compiled again {again} in {run.progress.step + 1} steps, because the "
                "shapes of batches keep changing or the step reads numbers that change: pad "
                "batches to a few lengths, or keep such numbers in tensors",
            )

    def _give_up_after(self, run: TrainingRun, error: BaseException) -> None:
        """Give up after an error of compiling; any other error is the user's."""
        if isinstance(error, NotCompilableError):
            self._give_up(run, str(error))
        elif failed_to_compile(error):
            self._give_up(run, _reason_of(error))
        else:
            raise error

    def _give_up(self, run: TrainingRun, reason: str) -> None:
        """Take all further steps without graphs, and say why; the gradients of the window so far
        are kept."""
        self.choice = "eager"
        self.reason = reason
        self._calls = None
        run.say(f"compile='step': the step is not compiled: {reason}.")
        run.note("compiled", f"eager: {reason}", **self.facts())

    def facts(self) -> dict[str, Any]:
        """The choice as the run's manifest has it."""
        return {
            "choice": self.choice,
            "reason": self.reason,
            "graphs": len(self.graphs),
            "recompilations": self.num_recompilations,
            "seconds": round(self.seconds, 1),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "choice": self.choice,
            "reason": self.reason,
            "graphs": list(self.graphs),
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["choice"] != self.choice:
            self._calls = None
        self.choice = state["choice"]
        self.reason = state["reason"]
        self.graphs = list(state["graphs"])
        self.seconds = max(self.seconds, state.get("seconds", 0.0))


def _leave_out(run: TrainingRun, seconds: float) -> None:
    """Let time of compiling count neither as time of training nor, in estimates, as that of
    evaluations."""
    run.metrics.eval_seconds += seconds
    run.metrics.compile_seconds += seconds


def _reason_of(error: BaseException) -> str:
    """What kept torch from compiling, in one line: its own first line, and the user's line of
    code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = (lines[0] if lines else type(error).__name__).rstrip(".:")
    own = os.path.join("loopwright", "training")
    places = [line for line in lines if line.startswith("File ") and own not in line]
    where = f" ({places[-1].removeprefix('File ')})" if places else ""
    return f"torch cannot trace it: {first}{where}"


def _seconds(run: TrainingRun, step: Step, batch: Any, number: int) -> float:
    """Take so many accumulation windows of one batch; return the seconds that they took."""
    window = run.window
    length = run.program.accumulate
    # a step may write into its batch, which the first step of the run needs as it is
    batches = iter([map_tensors(Tensor.clone, batch) for _ in range(number * length)])
    wait_for(run.runtime.device)
    # other programs' time counts on a clock, and on a busy machine it is most of it
    is_alone = run.runtime.is_host and torch.get_num_threads() == 1
    clock = process_time if is_alone else perf_counter
    began = clock()
    for _ in range(number):
        for position in range(length):
            window.is_last = position == length - 1
            window.divisor = float(length)
            step(next(batches))
    wait_for(run.runtime.device)
    return clock() - began


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was given, before a clock is read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


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
    as before; nothing outside hears of its updates."""
    update = next(iter(run.updates.by_name.values()))
    optimizer = update.optimizer
    keeper = Keeper()
    generators = rng_state()
    window = copy(run.window)
    program: Any = run.program
    owners = [program, run.updates, update, update.epoch]
    # a loss function that is an object of the user's; modules are kept as such
    if hasattr(program.loss_fn, "__dict__") and not isinstance(program.loss_fn, torch.nn.Module):
        owners.append(program.loss_fn)
    for owner in owners:
        keeper.keep(owner)
    for module in run.components.modules.values():
        keeper.keep_model(module)
    keeper.keep_optimizer(optimizer)
    states = {param: map_tensors(Tensor.clone, state) for param, state in optimizer.state.items()}
    optimizer.state = defaultdict(dict, states)
    update.guard = None if update.guard is None else _QuietGuard(update.guard)
    update.listeners = [lambda _: None for _ in update.listeners]
    update.schedulers = []
    try:
        with run.phase(Meter()), run.media.muted():
            yield
    finally:
        keeper.restore()
        for field in fields(window):
            setattr(run.window, field.name, getattr(window, field.name))
        set_rng_state(generators)
        torch.clear_autocast_cache()
