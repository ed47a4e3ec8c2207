"""Try settings of a trainer for their speed: each beside the present ones in turns, then those
worth it together. Of the settings nothing stays."""

from __future__ import annotations

import os
import signal
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from math import sqrt
from statistics import median
from time import perf_counter
from typing import Any

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
from ..runtime.fsdp import blocks_of
from ..text import counted
from ..training.callback_schedulers import set_hyperparameters
from ..training.compiled.choice import CompiledStep, wait_for
from ..training.keeper import Keeper
from ..training.program import Program
from ..training.run import TrainingRun
from ..training.train_call import run_training
from .trial import (
    SPARE,
    TrialWatch,
    available_memory,
    fresh_run,
    is_out_of_memory,
    kept_position,
    let_go,
    use_run,
)
from .tune_table import (
    CHANGES_NUMBERS,
    HEADER,
    LEAST_GAIN,
    Named,
    Tuning,
    TuningRow,
    aligned,
    effect_of,
    judged,
    present_cells,
    spread_of,
    summary_of,
)

MIN_TURNS = 3
MAX_TURNS = 7
WARM_UP = 2  # updates that are not timed at the start of a turn, and two more for each worker
LEAST_BOUND = 30.0
COMPILING = 120.0  # seconds that compiling is given beyond those of the other tries
WIDTHS = (19, 12, 14, 13)
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
MAX_DOUBLINGS = 6
WITH_WORKERS = ("timeout", "multiprocessing_context")  # options of a loader with workers
KEPT = ("collate_fn", "worker_init_fn", "generator", "in_order")


# The data


class TunedData:
    """Data as the user gave it. `fixed` has the reason for each of its settings that cannot be
    varied.

    Args:
        data: What `Trainer.train` takes.
        batch_size: Samples per batch, where the data is not in batches.
    """

    def __init__(self, data: Any, batch_size: int | None) -> None:
        self.given = as_dataset(data)
        self.given_size = batch_size
        self.is_loader = isinstance(self.given, DataLoader)
        self.num_samples: int | None = None  # in an epoch, where that is known
        self.batch_size: int | None = None
        self.workers = 0
        self.pin_memory = False
        self.fixed: dict[str, str] = {}
        samples = getattr(self.given, "dataset", None) if self.is_loader else self.given
        self._is_iterable = isinstance(samples, IterableDataset)
        if isinstance(self.given, DataLoader):
            self._read_loader(self.given)
        elif is_samples(self.given, batch_size) or self._is_iterable:
            self.batch_size = batch_size or DEFAULT_BATCH_SIZE
        else:
            kind = type(self.given).__name__
            if iter(self.given) is self.given and not isinstance(self.given, Stateful):
                raise ConfigurationError(
                    "one-use-iterator",
                    f"tune reads the data many times, but a {kind} can be read only once: pass a "
                    "data set, a DataLoader or a list of batches.",
                )
            self._fix(f"a {kind} already has batches: pass the data set itself")
        if self._is_iterable:
            self.fixed["workers"] = (
                "each worker would read the whole iterable data set, unless the data set divides "
                "itself"
            )

    def note_stream(self, stream: Stream) -> None:
        """Note what the stream that is opened over the data says about it."""
        self.num_samples = stream.num_samples
        if isinstance(stream, TensorStream):
            self.fixed["workers"] = (
                "batches are taken straight from the tensors, and workers would not be used"
            )

    def _read_loader(self, loader: DataLoader[Any]) -> None:
        self.workers = loader.num_workers
        self.pin_memory = bool(loader.pin_memory)
        self.batch_size = loader.batch_size
        if not iterates_as_torch(loader):
            self._fix(f"a {type(loader).__name__} with its own way of iterating")
        elif loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
            self.batch_size = None
            self.fixed["batch_size"] = "the loader has its own batch sampler"

    def _fix(self, reason: str) -> None:
        self.fixed |= dict.fromkeys(("workers", "batch_size", "pin_memory"), reason)

    def varied(self, settings: Settings) -> tuple[Any, int | None]:
        """Return data for `Trainer.train` and the batch size to pass with it."""
        changed = [
            name
            for name in ("batch_size", "workers", "pin_memory")
            if getattr(settings, name) != getattr(self, name)
        ]
        if not changed:
            return self.given, self.given_size
        if changed == ["batch_size"] and not self.is_loader:
            return self.given, settings.batch_size
        options: dict[str, Any] = {"shuffle": not self._is_iterable}
        samples = self.given
        if self.is_loader:
            options = self._options_of(self.given, settings.workers)
            samples = self.given.dataset
        if "batch_sampler" not in options:
            options["batch_size"] = settings.batch_size
        options |= {"num_workers": settings.workers, "pin_memory": settings.pin_memory}
        return DataLoader(samples, **options), None

    def _options_of(self, loader: DataLoader[Any], workers: int) -> dict[str, Any]:
        """The options of a loader that stay."""
        options = {name: getattr(loader, name) for name in KEPT}
        if workers:
            options |= {name: getattr(loader, name) for name in WITH_WORKERS}
            options["persistent_workers"] = loader.persistent_workers
            options["prefetch_factor"] = loader.prefetch_factor or 2
        if "batch_size" in self.fixed and loader.batch_sampler is not None:
            return options | {"batch_sampler": loader.batch_sampler}
        if not self._is_iterable:
            options["sampler"] = loader.sampler
        return options | {"drop_last": loader.drop_last}


# The settings


@dataclass(frozen=True, slots=True)
class Settings:
    """A value for each setting that is tried."""

    workers: int = 0
    batch_size: int | None = None
    compile: str | None = None
    precision: str = "fp32"
    threads: int = 1
    channels_last: bool = False
    fused: bool = False
    pin_memory: bool = False


NAMES = tuple(field.name for field in fields(Settings))


def present_settings(trainer: Program, data: TunedData) -> Settings:
    """The settings of a trainer and its data as they are."""
    optimizers = trainer.optimizers.values()
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return Settings(
        workers=data.workers,
        batch_size=data.batch_size,
        compile=trainer.compile_mode,
        precision=trainer.runtime.precision,
        threads=torch.get_num_threads(),
        channels_last=any(
            image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous()
            for image in _images(trainer)
        ),
        fused=bool(groups) and all(group.get("fused") for group in groups),
        pin_memory=data.pin_memory,
    )


def values_to_try(trainer: Program, data: TunedData, name: str) -> tuple[list[Any], str]:
    """The values of a setting, the present one among them; and why there is nothing to try, where
    there is no other."""
    device = trainer.runtime.device.type
    powers = sorted({1 << number for number in range(num_cores().bit_length())} | {num_cores()})
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
    if name == "threads":
        is_host = device == "cpu"
        why = "there is one core" if is_host else "the model is not on the CPU"
        return powers if is_host else [], why
    if name == "channels_last":
        has_images = any(True for _ in _images(trainer))
        why = "the model has no four-dimensional weights, such as those of convolutions"
        return [True] if has_images else [], why
    if name == "fused":
        kinds = [type(optimizer) for optimizer in trainer.optimizers.values()]
        if other := [kind.__name__ for kind in kinds if kind not in FUSED]:
            return [], f"torch has no fused {other[0]}"
        return [True], "the optimizer is fused already"
    return [True, False] if device == "cuda" else [], "there is no GPU to copy batches to"


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _images(trainer: Program) -> Iterator[torch.Tensor]:
    """The weights and buffers of four dimensions, of which `channels_last` changes the order in
    memory."""
    for module in trainer.modules.values():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() == 4:
                yield tensor


class Arrangement:
    """A trainer under some settings, with a run and optimizer states of its own.

    Args:
        trainer: The trainer, which is inside of `fresh_run`.
        settings: The settings to train with.
        data: The data, which is varied as the settings say.
    """

    def __init__(self, trainer: Program, settings: Settings, data: TunedData) -> None:
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
        self._images: list[torch.Tensor] = []  # weights in the order of channels-last

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the trainer has these settings."""
        trainer = self._trainer
        with ExitStack() as stack:
            stack.callback(use_run, trainer, trainer.run, trainer.compile_mode)
            use_run(trainer, self.run, self.settings.compile)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.settings.threads)
            if self.settings.channels_last:
                self._reorder_images(stack)
            self._compile_parts(stack)
            stack.enter_context(self._with_own_optimizers())
            yield

    def _reorder_images(self, undo: ExitStack) -> None:
        tensors = list(_images(self._trainer))
        if not self._images:  # made once: a compiled step may keep them
            self._images = [tensor.data.to(memory_format=torch.channels_last) for tensor in tensors]
        for tensor, values in zip(tensors, self._images, strict=True):
            undo.callback(setattr, tensor, "data", tensor.data)
            tensor.data = values

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
                if self.settings.fused:
                    for group in optimizer.param_groups:
                        group.update(fused=True, foreach=False)
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

    def begin(self, seconds: float, num_timed: int | None, num_warm: int) -> None:
        """Start a turn that is timed for some seconds, or for a number of updates."""
        self._seconds = seconds
        self._num_timed = num_timed
        self._num_updates = -num_warm
        self._started = self._clock()

    def on_update_end(self, trainer: Program) -> None:
        self._num_updates += 1
        if self._num_updates < 0 or not self._is_over():
            return
        wait_for(trainer.runtime.device)
        now = self._clock()
        seconds = now - self._started
        if self._num_updates == 0:
            # starting, compiling, filling the queues of workers
            self.warm_up_seconds = seconds
            self._started = now
            self._first = trainer.progress.sample
        else:
            samples = trainer.progress.sample - self._first
            self.samples_per_second = samples / max(seconds, 1e-9)
            trainer.run.stop("the turn is over")

    def _is_over(self) -> bool:
        """Whether the warm-up or the time is over."""
        if self._num_updates == 0 or self._num_timed is not None:
            return self._num_updates in (0, self._num_timed)
        return self._num_updates >= 2 and self._clock() - self._started >= self._seconds


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
        for line in ("", *summary_of(tuning)):
            self._say(line)
        return tuning

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
        named = Named(
            trainer=type(trainer).__name__,
            models=list(trainer.models),
            optimizers={name: type(each).__name__ for name, each in trainer.optimizers.items()},
            is_loader=data.is_loader,
            batch_size=data.batch_size,
        )
        return Tuning(
            asdict(self._present),
            median(self._speeds) if self._speeds else None,
            tuple(self._rows),
            self._reasons,
            is_complete and not self._is_late,
            named,
        )

    def _try_all(self) -> None:
        self._measure(self._own)  # the first turn of a process is slower than all others
        self._speeds = [self._measure(self._own) for _ in range(MIN_TURNS)]
        values: dict[str, list[Any]] = {}
        for name in self._names:
            found, why_none = values_to_try(self._trainer, self._data, name)
            others = [value for value in found if value != getattr(self._present, name)]
            if name == "compile" and self._compile_choices is not None:
                others = [value for value in others if value in self._compile_choices]
            if others:
                values[name] = others
            else:
                self._reasons[name] = why_none or "there is nothing else to try"
        self._announce(values)
        for name, some in values.items():
            self._try_each(name, some)
        self._try_together()

    def _announce(self, values: Mapping[str, list[Any]]) -> None:
        number = sum(map(len, values.values()))
        num_compiled = len(values.get("compile", ()))
        usual = 2 * self._seconds * (number + 1)
        bound = max(3 * usual, LEAST_BOUND) + COMPILING * num_compiled
        self._deadline = self._clock() + bound
        compiling = ", and the time of compiling" if num_compiled else ""
        self._say(
            f"Trying {counted(number, 'setting')} on {self._trainer.runtime.device} with "
            f"{counted(num_cores(), 'core')}: about {usual:.0f} s{compiling}; at most {bound:.0f} "
            "s. Ctrl-C stops early and prints the results so far."
        )
        self._say(aligned(HEADER, WIDTHS))
        self._say(aligned(present_cells(median(self._speeds)), WIDTHS))

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
            row = self._too_large(value) if name == "batch_size" else None
            row = row or self._compare({name: value})
            self._add(row)
            if name == "batch_size" and (row.ratio or 0.0) < best * (1 + LEAST_GAIN):
                return
            best = max(best, row.ratio or 0.0)

    def _is_over(self) -> bool:
        self._is_late = self._is_late or self._clock() > self._deadline
        return self._is_late

    def _too_large(self, size: int) -> TuningRow | None:
        """A batch that is not tried on the CPU, where running out of memory would end the
        process; by the bytes that a step keeps for its backward pass at present."""
        present = self._present.batch_size
        if not present or self._trainer.runtime.device.type != "cpu":
            return None
        if self._step_bytes is None:
            num_full = max((self._data.num_samples or present) // present, 1)
            watch = TrialWatch(present, num_full, counts=True)
            arrangement = Arrangement(self._trainer, self._present, self._data)
            arrangement.run.bind([*self._trainer.callbacks, watch])
            self._measure(arrangement)
            self._step_bytes = watch.memory or 0
        need = self._step_bytes * size // present
        free = int(SPARE * available_memory())
        if need <= free:
            return None
        sizes = f"about {need >> 20} MB, but only {free >> 20} MB are available"
        return TuningRow({"batch_size": size}, note=f"a step would need {sizes}")

    def _try_together(self) -> None:
        """Try the settings that are worth it together: all of them, and those that do not change
        the numbers."""
        every: dict[str, Any] = {}
        for row in sorted(self._rows, key=lambda row: row.ratio or 0.0):
            if row.verdict == "faster":
                every |= row.settings
        every = {name: every[name] for name in self._names if name in every}
        same = {name: value for name, value in every.items() if name not in CHANGES_NUMBERS}
        for settings in (same, every) if same != every else (every,):
            if len(settings) > 1 and not self._is_over():
                self._add(self._compare(settings))

    def _add(self, row: TuningRow) -> None:
        self._rows.append(row)
        self._say(aligned(row.cells, WIDTHS))

    def _compare(self, settings: Mapping[str, Any]) -> TuningRow:
        """Train under other settings and under the present ones in turns."""
        end = self._clock() + (2 * self._seconds if self._num_updates is None else 0.0)
        pairs: list[tuple[float, float]] = []
        warm_ups: list[float] = []
        tried: Arrangement | None = None
        while len(pairs) < MIN_TURNS or (self._clock() < end and len(pairs) < MAX_TURNS):
            present = self._measure(self._own)
            try:
                if tried is None:
                    other = replace(self._present, **settings)
                    tried = Arrangement(self._trainer, other, self._data)
                pairs.append((present, self._measure(tried)))
            except Exception as error:
                let_go(error)
                return TuningRow(settings, note=_reason(error))
            self._speeds.append(present)
            warm_ups.append(self._watch.warm_up_seconds)
            if len(warm_ups) == 1 and self._num_updates is None:
                end += warm_ups[0]
            if tried.run.num_micro_batches > 1:
                return TuningRow(settings, note="memory ran out; it would fit in micro-batches")
        assert tried is not None
        compiled = tried.run.compiled
        note = effect_of(settings)
        if compiled is not None and compiled.choice == "eager":
            note = f"not compiled: {compiled.reason}"
            if len(settings) > 1:
                settings = {name: value for name, value in settings.items() if name != "compile"}
                note = f"{effect_of(settings)}; {note}"
        elif settings.get("compile") is not None:
            seconds = warm_ups[0] - median(warm_ups[1:]) if compiled is None else compiled.seconds
            note = f"{note}; {_cost_of_compiling(seconds, pairs)}"
        # how much the present settings differ from themselves, from one turn to the next
        changes = [after / before for before, after in pairwise(self._speeds)]
        noise = spread_of(changes) * sqrt(len(changes) / len(pairs))
        return judged(settings, pairs, noise, note)

    def _measure(self, arrangement: Arrangement) -> float:
        """The speed of one turn, in samples per second."""
        num_warm = WARM_UP + 2 * arrangement.settings.workers
        self._watch.begin(self._seconds / MAX_TURNS, self._num_updates, num_warm)
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


def _cost_of_compiling(seconds: float, pairs: list[tuple[float, float]]) -> str:
    present, speed = (median(pair[at] for pair in pairs) for at in (0, 1))
    text = f"compiled in {seconds:.1f} s"
    if speed > present * (1 + LEAST_GAIN) and seconds > 0:
        samples = seconds * present * speed / (speed - present)
        text += f", which pays after {samples:,.0f} samples"
    return text


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
