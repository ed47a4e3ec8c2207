"""Try settings of a trainer for their speed, each in turns with the present ones. Of the settings
nothing stays."""

from __future__ import annotations

import signal
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from math import sqrt
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from .._torch_compat import iterates_as_torch
from .._torch_compat.compiling import compile_in_place, compiled_call, set_compiled_call
from ..callback import Callback
from ..callbacks.nonfinite import NonFiniteGuard
from ..data.indexed import TensorStream
from ..data.open import DEFAULT_BATCH_SIZE, as_dataset, is_samples
from ..data.stream import Stateful, Stream
from ..errors import ConfigurationError, Interrupted, check_number
from ..metrics.progress import Limits
from ..profiling.profile import num_cores
from ..runtime.fsdp import blocks_of
from ..training.callback_schedulers import set_hyperparameters
from ..training.compiled import CompiledStep, wait_for
from ..training.restore import Keeper
from ..training.run import TrainingRun
from ..training.train_call import run_training
from .trial import TrialWatch, fresh_run, is_out_of_memory, kept_position, let_go, usable, use_run

if TYPE_CHECKING:
    from ..callback import Trainer


NUM_TURNS = 5
WARM_UP = 2  # updates that are not timed at the start of a turn, and two more for each worker
LEAST_GAIN = 0.03  # of the speed: less is not worth a line of code, nor can it be told from noise
NORMAL = 1.4826  # a standard deviation, in median absolute deviations of a normal distribution
MAX_DOUBLINGS = 6
CHANGES_NUMBERS = ("batch_size", "precision")
HEADER = ("tried", "samples/s", "ratio", "worth it", "")
WIDTHS = (22, 11, 14, 10)
LINES = {
    "workers": "DataLoader(..., num_workers={})",
    "batch_size": "batch_size={}  # of the DataLoader, or of trainer.train",
    "compile": "Trainer(..., compile={!r})",
    "precision": "Trainer(..., precision={!r})",
    "threads": "torch.set_num_threads({})",
}
# options of a loader that stay: all, and those of a loader with workers
KEPT = (
    "collate_fn",
    "worker_init_fn",
    "generator",
    "in_order",
    "sampler",
    "drop_last",
    "pin_memory",
)
WITH_WORKERS = ("timeout", "multiprocessing_context", "persistent_workers")


# The result


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One try: some settings beside the present ones.

    Args:
        settings: The values that differ from the present ones, by name.
        samples_per_second: The speed; None where the settings do not work.
        ratio: The speed divided by that of the present settings, measured in turns; the median of
            these.
        spread: Twice the standard error of the ratio: a difference up to it may be chance.
        note: Why it does not work.

    >>> from loopwright.tuning import TuningRow
    >>> row = TuningRow({"threads": 2}, 1800.0, 1.8, 0.02)
    >>> row.label, row.is_worth_it
    ('2 threads', True)
    """

    settings: Mapping[str, Any]
    samples_per_second: float | None = None
    ratio: float | None = None
    spread: float = 0.0
    note: str = ""

    @property
    def label(self) -> str:
        """The settings in words."""
        return ", ".join(label_of(name, value) for name, value in self.settings.items())

    @property
    def is_worth_it(self) -> bool:
        """Whether the settings are faster by more than chance, and by more than 3 %."""
        return self.ratio is not None and self.ratio > 1 + max(self.spread, LEAST_GAIN)

    def __str__(self) -> str:
        if self.ratio is None:
            return aligned(self.label, "-", "-", "", self.note)
        note = ""
        if any(name in CHANGES_NUMBERS for name in self.settings):
            note = "changes the numbers"
        speed = f"{self.samples_per_second:,.0f}"
        ratio = f"{self.ratio:.2f} ± {self.spread:.2f}"
        return aligned(self.label, speed, ratio, "yes" if self.is_worth_it else "no", note)


@dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """The result of `Trainer.tune`; printed, it is a table and the suggestion.

    Args:
        present: The present settings, by name.
        samples_per_second: Their speed.
        rows: What was tried, in the order of trying; the last one may be all that are worth it
            together.
        not_tried: The settings that were not tried, each with the reason.
        is_complete: Whether everything was tried; False where Ctrl-C ended it.

    >>> from loopwright.tuning import Tuning, TuningRow
    >>> rows = (TuningRow({"threads": 2}, 1900.0, 1.9, 0.1),)
    >>> tuning = Tuning({"threads": 1}, 1000.0, rows)
    >>> tuning.suggestion, tuning.lines
    ({'threads': 2}, ['torch.set_num_threads(2)'])
    """

    present: Mapping[str, Any]
    samples_per_second: float | None
    rows: Sequence[TuningRow]
    not_tried: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True

    @property
    def suggestion(self) -> dict[str, Any]:
        """The fastest settings, with their values; empty where the present ones are as fast."""
        worth_it = [row for row in self.rows if row.is_worth_it]
        best = max(worth_it, key=lambda row: row.ratio or 0.0, default=None)
        return {} if best is None else dict(best.settings)

    @property
    def lines(self) -> list[str]:
        """The lines of code to change; `...` stands for what is there already."""
        return [LINES[name].format(value) for name, value in self.suggestion.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self) | {"suggestion": self.suggestion, "lines": self.lines}

    def summary(self, lines: Sequence[str]) -> list[str]:
        """What follows the table: what was not tried, and the lines to change."""
        found = [f"Not tried: {name}, because {why}." for name, why in self.not_tried.items()]
        if not self.is_complete:
            found.append("Stopped early; these are the results so far.")
        if not lines:
            return [*found, "Nothing is worth changing."]
        found += ["Worth changing:", *(f"    {line}" for line in lines)]
        if any(name in CHANGES_NUMBERS for name in self.suggestion):
            found.append("The numbers change: compare the losses of a run before you adopt this.")
        return found

    def __repr__(self) -> str:
        """A short form; `str(tuning)` is the table."""
        return f"Tuning({len(self.rows)} tried, suggestion={self.suggestion})"

    def __str__(self) -> str:
        table = [aligned(*HEADER), present_line(self.samples_per_second), *map(str, self.rows)]
        return "\n".join([*table, "", *self.summary(self.lines)])


def label_of(name: str, value: Any) -> str:
    """A setting in words: "2 workers"."""
    if name in ("workers", "threads"):
        return f"{value} {name[:-1] if value == 1 else name}"
    if name == "batch_size":
        return f"batch size {value}"
    if name == "compile":
        return "not compiled" if value is None else f'compile="{value}"'
    return str(value)


def aligned(label: str, speed: str, ratio: str, worth: str, note: str) -> str:
    """A line of the table: the numbers to the right, the words to the left."""
    first, second, third, fourth = WIDTHS
    numbers = f"{speed:>{second}}  {ratio:>{third}}"
    return f"{label:<{first}}  {numbers}  {worth:<{fourth}}  {note}".rstrip()


def present_line(speed: float | None) -> str:
    """The first row of the table."""
    return aligned("current settings", "-" if speed is None else f"{speed:,.0f}", "1", "", "")


def compared(
    settings: Mapping[str, Any], present: Sequence[float], tried: Sequence[float]
) -> TuningRow:
    """The row of settings whose speeds were measured in turns with the present ones.

    The spread is estimated so that a single slow turn does not count.
    """
    ratios = [new / old for old, new in zip(present, tried, strict=True)]
    ratio = median(ratios)
    deviation = NORMAL * median(abs(each - ratio) for each in ratios)
    return TuningRow(settings, median(tried), ratio, 2 * deviation / sqrt(len(ratios)))


# What is varied


@dataclass(frozen=True, slots=True)
class Settings:
    """A value for each setting that is tried."""

    workers: int = 0
    batch_size: int | None = None
    compile: str | None = None
    precision: str = "fp32"
    threads: int = 1


NAMES = tuple(each.name for each in fields(Settings))


class TunedData:
    """Data as the user gave it, and the same in other batches or with other workers.

    Args:
        data: What `Trainer.train` takes.
        batch_size: Samples per batch, where the data is not in batches.
    """

    def __init__(self, data: Any, batch_size: int | None) -> None:
        self.given = as_dataset(data)
        self.given_size = batch_size
        self.num_samples: int | None = None  # in an epoch, where that is known
        self.batch_size: int | None = None
        self.workers = 0
        self.fixed: dict[str, str] = {}  # why a setting cannot be varied
        given = self.given
        if isinstance(given, DataLoader):
            self.batch_size = given.batch_size
            self.workers = given.num_workers
            is_varied = iterates_as_torch(given) and type(given.batch_sampler) is BatchSampler
        else:
            is_varied = is_samples(given, batch_size) and not isinstance(given, IterableDataset)
            if is_varied or isinstance(given, IterableDataset):
                self.batch_size = batch_size or DEFAULT_BATCH_SIZE
            elif iter(given) is given and not isinstance(given, Stateful):
                raise ConfigurationError(
                    "one-use-iterator",
                    f"tune reads the data many times, but a {type(given).__name__} can be read "
                    "only once: pass a data set, a DataLoader or a list of batches.",
                )
        if not is_varied:
            reason = f"a {type(given).__name__} makes its own batches: pass a data set"
            self.fixed = {"workers": reason, "batch_size": reason}

    def note_stream(self, stream: Stream) -> None:
        """Note what the stream that is opened over the data says about it."""
        self.num_samples = stream.num_samples
        if isinstance(stream, TensorStream):
            self.fixed["workers"] = "batches are taken straight from the tensors"

    def varied(self, settings: Settings) -> tuple[Any, int | None]:
        """Return data for `Trainer.train` and the batch size to pass with it."""
        if settings.workers == self.workers and settings.batch_size == self.batch_size:
            return self.given, self.given_size
        if settings.workers == self.workers and not isinstance(self.given, DataLoader):
            return self.given, settings.batch_size
        samples = self.given
        options: dict[str, Any] = {"shuffle": True}
        if isinstance(self.given, DataLoader):
            samples = self.given.dataset
            names = (*KEPT, *WITH_WORKERS) if settings.workers else KEPT
            options = {name: getattr(self.given, name) for name in names}
        options |= {"batch_size": settings.batch_size, "num_workers": settings.workers}
        return DataLoader(samples, **options), None


def present_settings(trainer: Trainer, data: TunedData) -> Settings:
    """The settings of a trainer and its data as they are."""
    return Settings(
        workers=data.workers,
        batch_size=data.batch_size,
        compile=trainer.compile_mode,
        precision=trainer.runtime.precision,
        threads=torch.get_num_threads(),
    )


def values_to_try(trainer: Trainer, data: TunedData, name: str) -> tuple[list[Any], str]:
    """The values of a setting, the present one among them; and why there is nothing to try, where
    there is no other."""
    device = trainer.runtime.device.type
    cores = num_cores()
    powers = sorted({1 << number for number in range(cores.bit_length())} | {cores})
    if name in data.fixed:
        return [], data.fixed[name]
    if name == "workers":
        return [0, *powers], ""
    if name == "batch_size":
        length = data.num_samples
        sizes = [(data.batch_size or 1) << number for number in range(1, MAX_DOUBLINGS + 1)]
        reason = f"the data set has {length} samples, which is less than twice the batch"
        return [size for size in sizes if length is None or size <= length], reason
    if name == "compile":
        has_blocks = any(blocks_of(module) for module in trainer.models.values())
        return [None, "step", "model", *(["blocks"] if has_blocks else [])], ""
    if name == "precision":
        return ["fp32", "bf16", *(["fp16"] if device == "cuda" else [])], ""
    if device != "cpu":
        return [], "the model is not on the CPU"
    return powers, "there is one core"


class Arrangement:
    """A trainer under some settings, with a run and optimizer states of its own.

    Args:
        trainer: The trainer, which is inside of `fresh_run`.
        settings: The settings to train with.
        data: The data, which is varied as the settings say.
    """

    def __init__(self, trainer: Trainer, settings: Settings, data: TunedData) -> None:
        self._trainer = trainer
        self.settings = settings
        self.data, self.batch_size = data.varied(settings)
        is_step = settings.compile == "step"
        runtime = copy(trainer.runtime)
        runtime.precision = settings.precision
        runtime.compile = None if is_step else settings.compile
        self.run: TrainingRun = trainer.run.fresh(runtime, CompiledStep() if is_step else None)
        self.run.bind(trainer.callbacks)
        self._states: dict[str, Any] = {name: defaultdict(dict) for name in trainer.optimizers}
        self._compiled: dict[nn.Module, Any] = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the trainer has these settings."""
        trainer = self._trainer
        with ExitStack() as stack:
            stack.callback(use_run, trainer, trainer.run, trainer.compile_mode)
            use_run(trainer, self.run, self.settings.compile)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.settings.threads)
            self._compile_parts(stack)
            stack.enter_context(self._with_own_optimizers())
            yield

    def _compile_parts(self, undo: ExitStack) -> None:
        """Compile the model or its blocks in place, once; later the same compiled functions are
        used."""
        kind = self.settings.compile
        for module in self._trainer.modules.values():
            for part in module.modules():
                undo.callback(set_compiled_call, part, compiled_call(part))
                if compiled_call(part) is not None:
                    set_compiled_call(part, None)
        for model in self._trainer.models.values() if kind in ("model", "blocks") else ():
            for part in [model] if kind == "model" else blocks_of(model):
                if part not in self._compiled:
                    compile_in_place(part)
                    self._compiled[part] = compiled_call(part)
                set_compiled_call(part, self._compiled[part])

    @contextmanager
    def _with_own_optimizers(self) -> Iterator[None]:
        optimizers = self._trainer.optimizers
        before = {
            name: [dict(group) for group in optimizer.param_groups]
            for name, optimizer in optimizers.items()
        }
        try:
            for name, optimizer in optimizers.items():
                optimizer.state = self._states[name]
            yield
        finally:
            for name, optimizer in optimizers.items():
                self._states[name] = optimizer.state
                optimizer.state = defaultdict(dict)
                set_hyperparameters(optimizer, before[name])


# The tries


class Stopwatch(Callback):
    """Callback that times the updates of a turn after its warm-up, and ends the turn."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.samples_per_second = 0.0

    def begin(self, seconds: float, num_timed: int | None, num_warm: int) -> None:
        """Start a turn that is timed for some seconds, or for a number of updates."""
        self._seconds = seconds
        self._num_timed = num_timed
        self._num_updates = -num_warm

    def on_update_end(self, trainer: Trainer) -> None:
        self._num_updates += 1
        if self._num_updates == 0:  # compiled, and the queues of workers are full
            wait_for(trainer.runtime.device)
            self._started = self._clock()
            self._first = trainer.progress.sample
        elif self._num_updates > 0 and self._is_over():
            wait_for(trainer.runtime.device)
            seconds = max(self._clock() - self._started, 1e-9)
            self.samples_per_second = (trainer.progress.sample - self._first) / seconds
            trainer.run.stop("the turn is over")

    def _is_over(self) -> bool:
        if self._num_timed is not None:
            return self._num_updates >= self._num_timed
        return self._num_updates >= 2 and self._clock() - self._started >= self._seconds


class Tuner:
    """The tries of one trainer.

    Args:
        trainer: The trainer; fresh runs of it are trained and discarded.
        data: Training data, as for `Trainer.train`.
        batch_size: Samples per batch, where the data is not in batches.
        seconds: The time for each of two settings that are compared.
        only: The names of the settings to try; all by default.
        compile_choices: The values of `compile` that the caller has a line for.
        is_silent: Whether to print nothing; by default where the trainer is silent.
    """

    # timed in a turn instead of seconds, so that tests count rather than time
    _num_updates: int | None = None
    _clock: Callable[[], float] = staticmethod(perf_counter)

    def __init__(
        self,
        trainer: Trainer,
        data: Any,
        *,
        batch_size: int | None = None,
        seconds: float = 2.0,
        only: Iterable[str] | None = None,
        compile_choices: Iterable[str] = ("step", "model", "blocks"),
        is_silent: bool | None = None,
    ) -> None:
        self._names = _checked(trainer.runtime.world, seconds, only)
        self._trainer = trainer
        self._seconds = seconds
        self._is_silent = trainer.run.progress_style == "silent" if is_silent is None else is_silent
        self._compile_choices = {None, *compile_choices}
        self._data = TunedData(trainer.configure_data()[0] if data is None else data, batch_size)
        self._watch = Stopwatch(self._clock)
        self._rows: list[TuningRow] = []
        self._speeds: list[float] = []  # of the present settings, in every turn
        self._reasons: dict[str, str] = {}

    def run(self) -> Tuning:
        """Try everything; Ctrl-C ends it with what is known."""
        trainer = self._trainer
        data = self._data
        is_complete = True
        with (
            fresh_run(trainer, [NonFiniteGuard("skip"), self._watch]) as keeper,
            kept_position(trainer, data.given, data.given_size) as stream,
        ):
            data.note_stream(stream)
            self._keeper: Keeper = keeper
            self._present = present_settings(trainer, data)
            self._own = Arrangement(trainer, self._present, data)
            try:
                self._try_all()
            except (Interrupted, KeyboardInterrupt) as error:
                if isinstance(error, Interrupted) and error.code != 128 + signal.SIGINT:
                    raise
                is_complete = False
        speed = median(self._speeds) if self._speeds else None
        present = asdict(self._present)
        return Tuning(present, speed, tuple(self._rows), self._reasons, is_complete)

    def say(self, *lines: str) -> None:
        """Print lines, unless the caller wants none."""
        if not self._is_silent:
            for line in lines:
                print(line, flush=True)

    def _try_all(self) -> None:
        self._measure(self._own)  # the first turn of a process is slower than all others
        self._speeds = [self._measure(self._own)]
        self.say("Ctrl-C stops early and prints the results so far.", aligned(*HEADER))
        self.say(present_line(self._speeds[0]))
        for name in self._names:
            values, why_none = values_to_try(self._trainer, self._data, name)
            values = [value for value in values if value != getattr(self._present, name)]
            if name == "compile":
                values = [value for value in values if value in self._compile_choices]
            if not values:
                self._reasons[name] = why_none or "there is nothing else to try"
            best = 1.0
            for value in values:
                ratio = self._try({name: value}).ratio or 0.0
                if name == "batch_size" and ratio < best * (1 + LEAST_GAIN):
                    break  # batches are made larger for as long as that is faster
                best = max(best, ratio)
        together: dict[str, Any] = {}
        for row in sorted(self._rows, key=lambda row: row.ratio or 0.0):
            if row.is_worth_it:
                together |= row.settings
        if len(together) > 1:
            self._try(together)

    def _try(self, settings: Mapping[str, Any]) -> TuningRow:
        row = self._compare(settings)
        self._rows.append(row)
        self.say(str(row))
        return row

    def _compare(self, settings: Mapping[str, Any]) -> TuningRow:
        """Train under other settings and under the present ones in turns."""
        size = settings.get("batch_size")
        if size is not None and (need := self._bytes_missing(size)):
            return TuningRow(settings, note=f"a step would need about {need >> 20} MB")
        present: list[float] = []
        speeds: list[float] = []
        tried: Arrangement | None = None
        for _ in range(NUM_TURNS):
            present.append(self._measure(self._own))
            try:
                if tried is None:
                    other = replace(self._present, **settings)
                    tried = Arrangement(self._trainer, other, self._data)
                speeds.append(self._measure(tried))
            except Exception as error:
                let_go(error)
                return TuningRow(settings, note=_reason(error))
            if tried.run.num_micro_batches > 1:
                return TuningRow(settings, note="memory ran out; it would fit in micro-batches")
            compiled = tried.run.compiled
            if compiled is not None and compiled.choice == "eager":
                return TuningRow(settings, note=f"not compiled: {compiled.reason}")
        self._speeds += present
        return compared(settings, present, speeds)

    def _bytes_missing(self, size: int) -> int:
        """The bytes that a step with larger batches needs, where the CPU has not as many: running
        out of memory would end the process. 0 where there are enough."""
        present = self._present.batch_size
        if not present or self._trainer.runtime.device.type != "cpu":
            return 0
        watch = TrialWatch(present, max((self._data.num_samples or present) // present, 1))
        arrangement = Arrangement(self._trainer, self._present, self._data)
        arrangement.run.bind([*self._trainer.callbacks, watch])
        self._measure(arrangement)
        need = (watch.memory or 0) * size // present
        return need if need > usable() else 0

    def _measure(self, arrangement: Arrangement) -> float:
        """The speed of one turn, in samples per second."""
        num_warm = WARM_UP + 2 * arrangement.settings.workers
        self._watch.begin(self._seconds / NUM_TURNS, self._num_updates, num_warm)
        with warnings.catch_warnings(), arrangement.in_place():
            warnings.simplefilter("ignore")  # of a setting that is only tried
            self._keeper.restore_tensors()
            run_training(
                arrangement.run,
                arrangement.data,
                None,
                Limits(updates=1 << 60),
                batch_size=arrangement.batch_size,
                resume="auto",
            )
        return self._watch.samples_per_second


def _checked(world: int, seconds: float, only: Iterable[str] | None) -> list[str]:
    """The names of the settings to try."""
    if world > 1:
        raise ConfigurationError(
            "tune-on-processes",
            f"tune was called on {world} processes, but a trial would have to be the same on all "
            "of them: start the program on one process, without a launcher.",
        )
    check_number("seconds", seconds, above=0, is_whole=False)
    names = NAMES if only is None else [only] if isinstance(only, str) else list(only)
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigurationError(
            "unknown-setting",
            f"tune does not know {', '.join(map(repr, unknown))}: it tries {', '.join(NAMES)}.",
        )
    return list(names)


def _reason(error: Exception) -> str:
    """Why a setting does not work, in a line."""
    if is_out_of_memory(error):
        return "memory ran out"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught ") and "worker" in lines[0]:
        return f"in a worker, {lines[-1]}"[:200]
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__
