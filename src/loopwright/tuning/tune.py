"""Try settings of a trainer for their speed: each beside the present ones in turns, then those
worth it together."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from math import sqrt
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..callback import Callback
from ..callbacks.nonfinite import NonFiniteGuard
from ..errors import ConfigurationError, Interrupted, check_number
from ..metrics.progress import Limits
from ..text import counted
from ..training.compiled import wait_for
from ..training.program import Program
from ..training.restore import Keeper
from ..training.train_call import run_training
from . import tune_table
from .batch_size import SPARE, TrialWatch, available_memory, is_out_of_memory, let_go
from .fresh_run import fresh_run, kept_position
from .tune_settings import NAMES, Arrangement, Choices, TunedData, num_cores
from .tune_table import (
    CHANGES_NUMBERS,
    LEAST_GAIN,
    Tuning,
    TuningRow,
    aligned,
    effect_of,
    judged,
    spread_of,
)

MIN_TURNS = 3
MAX_TURNS = 7
WARM_UP = 2  # updates that are not timed at the start of a turn, and two more for each worker
LEAST_BOUND = 30.0
LEAST_COMPILING = 0.1  # seconds: less is no compiling
COMPILING = 120.0  # seconds that compiling is given beyond those of the other tries
WIDTHS = (19, 12, 14, 13)


class Stopwatch(Callback):
    """Callback that times the updates of a turn after its warm-up, and ends the turn."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._num_timed: int | None = None
        self._num_warm = WARM_UP
        self._began = 0.0
        self._started = 0.0
        self._ended = 0.0
        self._update = 0
        self._first = 0
        self._last = 0

    def begin(self, seconds: float, num_timed: int | None, num_warm: int) -> None:
        """Start a turn that is timed for some seconds, or for a number of updates."""
        self._seconds = seconds
        self._num_timed = num_timed
        self._num_warm = num_warm
        self._update, self._began = 0, self._clock()

    @property
    def samples_per_second(self) -> float:
        return (self._last - self._first) / max(self._ended - self._started, 1e-9)

    @property
    def warm_up_seconds(self) -> float:
        """The time up to the first update that is timed: starting, compiling, filling the queues of
        workers."""
        return self._started - self._began

    def on_update_end(self, trainer: Program) -> None:
        self._update += 1
        num_timed = self._update - self._num_warm
        if num_timed == 0:
            self._started = self._now(trainer.runtime.device)
            self._first = trainer.progress.sample
        elif num_timed > 0 and self._is_over(num_timed):
            self._ended = self._now(trainer.runtime.device)
            self._last = trainer.progress.sample
            trainer.run.stop("the turn is over")

    def _is_over(self, num_timed: int) -> bool:
        if self._num_timed is not None:
            return num_timed >= self._num_timed
        return num_timed >= 2 and self._clock() - self._started >= self._seconds

    def _now(self, device: torch.device) -> float:
        wait_for(device)
        return self._clock()


class Tuner:
    """The tries of one trainer.

    Args:
        trainer: The trainer; fresh runs of it are trained and discarded.
        data: Training data, as for `Trainer.train`.
        batch_size: Samples per batch, where the data is not in batches.
        seconds: The time for each of two settings that are compared.
        only: The names of the settings to try; all by default.
        compile_choices: The values of `compile` that the caller has a line for; all by default.
        is_silent: Whether to print nothing; by default where the trainer is silent.
    """

    # timed in a turn instead of seconds, so that tests count rather than time
    _num_updates: int | None = None
    _clock: Callable[[], float] = staticmethod(perf_counter)

    def __init__(
        self,
        trainer: Program,
        data: Any,
        *,
        batch_size: int | None = None,
        seconds: float = 2.0,
        only: Iterable[str] | None = None,
        compile_choices: Iterable[str] | None = None,
        is_silent: bool | None = None,
    ) -> None:
        self._names = _checked(trainer.runtime.world, seconds, only)
        self._trainer = trainer
        self._seconds = seconds
        self._is_silent = trainer.run.progress_style == "silent" if is_silent is None else is_silent
        self._compile_choices = None if compile_choices is None else {None, *compile_choices}
        self._data = TunedData(trainer.configure_data()[0] if data is None else data, batch_size)
        self._watch = Stopwatch(self._clock)
        self._rows: list[TuningRow] = []
        self._speeds: list[float] = []  # of the present settings, in every turn
        self._reasons: dict[str, str] = {}
        self._deadline = float("inf")
        self._is_late = False
        self._step_bytes: int | None = None

    def tell(self) -> Tuning:
        """Try everything, and print what is worth it."""
        tuning = self.run()
        for line in ("", *tune_table.summary_of(tuning)):
            self._say(line)
        return tuning

    def run(self) -> Tuning:
        """Try everything; Ctrl-C ends it with what is known."""
        trainer = self._trainer
        is_complete = True
        with (
            fresh_run(trainer, [NonFiniteGuard("skip"), self._watch]) as keeper,
            kept_position(trainer, self._data.given, self._data.given_size) as stream,
        ):
            self._data.note_stream(stream)
            self._choices = Choices(trainer, self._data)
            self._present = self._choices.present
            self._keeper: Keeper = keeper
            self._own = Arrangement(trainer, self._present, self._data)
            try:
                self._try_all()
            except (Interrupted, KeyboardInterrupt) as error:
                if isinstance(error, Interrupted) and error.code != 128 + signal.SIGINT:
                    raise
                is_complete = False
        return self._result(is_complete and not self._is_late)

    def _result(self, is_complete: bool) -> Tuning:
        trainer = self._trainer
        speed = median(self._speeds) if self._speeds else None
        named = tune_table.Named(
            trainer=type(trainer).__name__,
            models=list(trainer.models),
            optimizers={
                name: type(optimizer).__name__ for name, optimizer in trainer.optimizers.items()
            },
            is_loader=self._data.is_loader,
            batch_size=self._data.batch_size,
        )
        return Tuning(
            asdict(self._present), speed, tuple(self._rows), self._reasons, is_complete, named
        )

    def _try_all(self) -> None:
        self._measure(self._own)  # the first turn of a process is slower than all others
        self._speeds = [self._measure(self._own) for _ in range(MIN_TURNS)]
        choices = self._choices
        values = {name: choices.of(name) for name in self._names}
        if self._compile_choices is not None and "compile" in values:
            values["compile"] = [v for v in values["compile"] if v in self._compile_choices]
        self._reasons |= {
            name: reason for name, reason in choices.reasons.items() if name in self._names
        }
        self._announce(values)
        for name, some in values.items():
            self._try_each(name, some)
        self._try_together()

    def _announce(self, values: Mapping[str, list[Any]]) -> None:
        number = sum(map(len, values.values()))
        usual = 2 * self._seconds * (number + 1)
        bound = max(3 * usual, LEAST_BOUND) + COMPILING * len(values.get("compile", ()))
        self._deadline = self._clock() + bound
        compiling = ", and the time of compiling" if values.get("compile") else ""
        self._say(
            f"Trying {counted(number, 'setting')} on {self._trainer.runtime.device} with "
            f"{counted(num_cores(), 'core')}: about {usual:.0f} s{compiling}; at most {bound:.0f} "
            "s. Ctrl-C stops early and prints the results so far."
        )
        self._say(aligned(tune_table.HEADER, WIDTHS))
        self._say(aligned(tune_table.present_cells(median(self._speeds)), WIDTHS))

    def _say(self, line: str) -> None:
        if not self._is_silent:
            print(line, flush=True)

    def _try_each(self, name: str, values: list[Any]) -> None:
        """Try the values of one setting; batches are made larger for as long as that is faster."""
        best = 1.0
        for value in values:
            if self._is_over():
                self._reasons[name] = "the time was up"
                return
            if name == "batch_size" and (reason := self._too_large(value)):
                self._add(TuningRow({name: value}, note=reason))
                return
            row = self._compare({name: value})
            self._add(row)
            if name == "batch_size" and (row.ratio is None or row.ratio < best * (1 + LEAST_GAIN)):
                return
            best = max(best, row.ratio or 0.0)

    def _is_over(self) -> bool:
        self._is_late = self._is_late or self._clock() > self._deadline
        return self._is_late

    def _too_large(self, size: int) -> str | None:
        """Why a batch is not tried on the CPU, where running out of memory would end the
        process."""
        present = self._present.batch_size
        if not present or self._trainer.runtime.device.type != "cpu":
            return None
        if self._step_bytes is None:
            self._step_bytes = self._count_bytes(present)
        need = self._step_bytes * size // present
        free = int(SPARE * available_memory())
        if need <= free:
            return None
        return f"a step would need about {need >> 20} MB, but only {free >> 20} MB are available"

    def _count_bytes(self, size: int) -> int:
        """The bytes that a step with the present settings keeps for its backward pass."""
        counted_run = Arrangement(self._trainer, self._present, self._data)
        watch = TrialWatch()
        counted_run.run.bind([*self._trainer.callbacks, watch])
        watch.begin(size, max((self._data.num_samples or size) // size, 1), counts=True)
        self._measure(counted_run)
        return watch.memory or 0

    def _try_together(self) -> None:
        """Try the settings that are worth it together: all of them, and those that do not change
        the numbers."""
        best: dict[str, TuningRow] = {}
        for row in self._rows:
            (name,) = row.settings
            if row.verdict == "faster" and (
                name not in best or (row.ratio or 0.0) > (best[name].ratio or 0.0)
            ):
                best[name] = row
        every = {name: row.settings[name] for name, row in best.items()}
        same = {name: value for name, value in every.items() if name not in CHANGES_NUMBERS}
        for settings in (same, every) if same != every else (every,):
            if len(settings) > 1 and not self._is_over():
                self._add(self._compare(settings))

    def _add(self, row: TuningRow) -> None:
        self._rows.append(row)
        self._say(aligned(row.cells, WIDTHS))

    def _compare(self, settings: Mapping[str, Any]) -> TuningRow:
        """Train under other settings and under the present ones in turns."""
        began = self._clock()
        pairs = list[tuple[float, float]]()
        warm_ups = list[float]()
        tried: Arrangement | None = None
        while len(pairs) < MIN_TURNS or not self._is_enough(len(pairs), began + sum(warm_ups[:1])):
            present = self._measure(self._own)
            try:
                if tried is None:
                    tried = Arrangement(
                        self._trainer, replace(self._present, **settings), self._data
                    )
                pairs.append((present, self._measure(tried)))
            except Exception as error:
                let_go(error)
                return TuningRow(settings, note=_reason(error))
            self._speeds.append(present)
            warm_ups.append(self._watch.warm_up_seconds)
            if tried.run.num_micro_batches > 1:
                return TuningRow(settings, note="memory ran out; it would fit in micro-batches")
        assert tried is not None
        note = self._note(settings, tried, pairs, warm_ups)
        if (
            len(settings) > 1
            and tried.run.compiled is not None
            and tried.run.compiled.choice == "eager"
        ):
            # it was without
            settings = {name: value for name, value in settings.items() if name != "compile"}
        return judged(settings, pairs, self._noise(len(pairs)), note)

    def _is_enough(self, num_turns: int, began: float) -> bool:
        if self._num_updates is not None:
            return True
        return num_turns >= MAX_TURNS or self._clock() - began >= 2 * self._seconds

    def _noise(self, num_turns: int) -> float:
        """How much the present settings differ from themselves, from one turn to the next."""
        changes = [after / before for before, after in pairwise(self._speeds)]
        return spread_of(changes) * sqrt(len(changes) / num_turns)

    def _measure(self, arrangement: Arrangement) -> float:
        """The speed of one turn, in samples per second."""
        num_warm = WARM_UP + 2 * arrangement.settings.workers
        self._watch.begin(self._seconds / MAX_TURNS, self._num_updates, num_warm)
        with warnings.catch_warnings(), arrangement.in_place():
            warnings.simplefilter("ignore")  # of a setting that is only tried
            self._keeper.restore_tensors()
            limits = Limits(updates=1 << 60)
            run_training(
                arrangement.run,
                arrangement.data,
                None,
                limits,
                batch_size=arrangement.batch_size,
                resume="auto",
            )
        return self._watch.samples_per_second

    def _note(
        self,
        settings: Mapping[str, Any],
        tried: Arrangement,
        pairs: list[tuple[float, float]],
        warm_ups: list[float],
    ) -> str:
        """What else is to be known: whether the numbers change, and what compiling costs."""
        note = effect_of(settings)
        if settings.get("compile") is None:
            return note
        compiled = tried.run.compiled
        if compiled is not None and compiled.choice == "eager":
            start = note if len(settings) > 1 else ""
            return "; ".join(filter(None, (start, f"not compiled: {compiled.reason}")))
        seconds = warm_ups[0] - median(warm_ups[1:]) if compiled is None else compiled.seconds
        if seconds < LEAST_COMPILING:
            return f"{note}; compiling took no time: torch seems to have compiled nothing"
        present, speed = (median(pair[at] for pair in pairs) for at in (0, 1))
        pays = ""
        if speed > present * (1 + LEAST_GAIN) and seconds > 0:
            pays = (
                f", which pays after {seconds * present * speed / (speed - present):,.0f} samples"
            )
        return f"{note}; compiled in {seconds:.1f} s{pays}"


def _checked(world: int, seconds: float, only: Iterable[str] | None) -> list[str]:
    """The names of the settings to try."""
    if world > 1:
        raise ConfigurationError(
            "tune-on-processes",
            f"tune was called on {world} processes, but a trial would have to be the same on all "
            "of them: start the program on one process, without a launcher. Workers, precision, "
            "compile and memory format carry over; a batch size is then that of one process.",
        )
    check_number("seconds", seconds, above=0, is_whole=False)
    names = list(NAMES) if only is None else [only] if isinstance(only, str) else list(only)
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigurationError(
            "unknown-setting",
            f"tune does not know {', '.join(map(repr, unknown))}: it tries {', '.join(NAMES)}.",
        )
    return names


def _reason(error: Exception) -> str:
    """Why a setting does not work, in a line."""
    if is_out_of_memory(error):
        return "memory ran out"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught ") and "worker" in lines[0]:
        return f"in a worker, {lines[-1]}"[:200]
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__
