"""Find the largest batch that fits: sizes are doubled until memory runs out, then bisected; each
size is timed."""

from __future__ import annotations

import gc
import os
import statistics
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..callback import Callback
from ..callbacks.nonfinite import NonFiniteGuard
from ..data.open import Stream
from ..data.stream import LimitedStream
from ..errors import ConfigurationError
from ..metrics.result import StepResult
from ..training.compiled import wait_for
from ..training.program import Program
from .fresh_run import fresh_run, start_again, train_for_a_while

NEARLY = 0.95  # of the best throughput: a smaller batch that has as much is the better one
# the part of the free memory that is used: the operating system kills processes that use all of it
SPARE = 0.8
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Trial:
    """One batch size: whether it fits, how fast it is, and how much memory a step needs besides the
    weights.

    Args:
        size: Samples per batch.
        fits: Whether all updates ran.
        samples_per_second: The speed; None where the size does not fit.
        memory: Bytes that a step keeps besides the weights, where they were measured.
        reason: Why the size does not fit; None where it does.

    >>> from loopwright.tuning import Trial
    >>> Trial(64, fits=True, samples_per_second=1000.0).reason is None
    True
    """

    size: int
    fits: bool
    samples_per_second: float | None = None
    memory: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BatchSizeScan:
    """The result of `find_batch_size`.

    Args:
        trials: The sizes in the order in which they were tried.
        bound: What ended the search: memory, the data set, or `max_size`.

    >>> from loopwright.tuning import BatchSizeScan, Trial
    >>> scan = BatchSizeScan((Trial(32, True, 900.0), Trial(64, True, 910.0), Trial(128, False)), "memory")
    >>> scan.largest, scan.suggestion
    (64, 32)
    """

    trials: tuple[Trial, ...]
    bound: str

    @property
    def largest(self) -> int | None:
        """The largest size that fits; None where not even the smallest does."""
        return max((trial.size for trial in self.trials if trial.fits), default=None)

    @property
    def suggestion(self) -> int | None:
        """The smallest size that is about as fast as the fastest."""
        speeds = {
            t.size: t.samples_per_second
            for t in self.trials
            if t.fits and t.samples_per_second is not None
        }
        best = max(speeds.values(), default=0.0)
        return min(
            (size for size, speed in speeds.items() if speed >= NEARLY * best), default=self.largest
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the scan as plain values, for JSON."""
        return {
            "largest": self.largest,
            "suggestion": self.suggestion,
            "bound": self.bound,
            "trials": [asdict(trial) for trial in self.trials],
        }


def find_batch_size(
    trainer: Program,
    data: Any,
    *,
    start: int = 1,
    max_size: int = 4096,
    num_updates: int = 4,
    memory: int | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> BatchSizeScan:
    """Find the largest batch size that fits in memory; the trainer's state is the same afterwards.

    Sizes are doubled from `start` until one does not fit, then bisected. On the CPU, where running
    out of memory ends the process, a size is not tried if its step would need more than `memory`
    bytes, estimated from smaller sizes.

    Args:
        trainer: The trainer; a fresh run of it is trained and discarded.
        data: A data set with a length.
        start: The first size, in samples.
        max_size: The largest size to try; no size is larger than the data set.
        num_updates: Updates per size. A size fits if all of them run.
        memory: Bytes that a step may need on the CPU. Default: 80 % of the free memory.
        on_trial: Called with each `Trial` after it was tried.

    Returns:
        The trials, with `largest` (the largest size that fits) and `suggestion` (the smallest that
        is about as fast as the fastest).

    Example:
        >>> import torch, loopwright
        >>> from loopwright.tuning import find_batch_size
        >>> x, model = torch.randn(8, 3), torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = loopwright.Trainer(model, optimizer, torch.nn.MSELoss(), progress="silent")
        >>> find_batch_size(trainer, torch.utils.data.TensorDataset(x, x[:, :1])).largest
        8
    """
    length = _length_of(data)
    if not 1 <= start <= min(max_size, length):
        raise ConfigurationError(
            "batch-size-range",
            f"Batches from {start} to {max_size} samples of {length}: use 1 <= start <= max_size, "
            "and at most the number of samples.",
        )
    search = _Search(trainer, data, length, num_updates, memory, on_trial)
    with fresh_run(trainer, [NonFiniteGuard("off"), search.watch]):
        bound = search.run(start, min(max_size, length))
    if bound is None:
        bound = (
            f"the data set, which has {length} samples"
            if length <= max_size
            else f"max_size, {max_size} samples"
        )
    return BatchSizeScan(tuple(search.trials), bound)


def _length_of(data: Any) -> int:
    if (
        isinstance(data, DataLoader)
        or not isinstance(data, Dataset)
        or isinstance(data, IterableDataset)
    ):
        raise ConfigurationError(
            "needs-data-set",
            f"Data of type {type(data).__name__} makes its own batches, or has no length: pass "
            "the data set itself, so that batches of any size can be made.",
        )
    return len(data)  # type: ignore[arg-type]  # a map-style data set


class _Search:
    """The search for one trainer: double the size, then bisect."""

    def __init__(
        self,
        trainer: Program,
        data: Any,
        length: int,
        num_updates: int,
        memory: int | None,
        on_trial: Callable[[Trial], None] | None,
    ) -> None:
        self._trainer = trainer
        self._data = data
        self._length = length
        self._num_updates = num_updates
        self._on_trial = on_trial
        self._is_host = trainer.runtime.device.type == "cpu"
        self._memory = (
            memory if memory is not None or not self._is_host else int(SPARE * available_memory())
        )
        self.trials: list[Trial] = []
        self.watch = TrialWatch()

    def run(self, start: int, most: int) -> str | None:
        """Look for the largest; what it ended at, None if that was the end of the sizes."""
        size = start
        fitting = 0
        while self._fits(size):
            fitting = size
            if size == most:
                return None
            size = min(2 * size, most)
        failing = size
        while failing - fitting > 1 and fitting:
            middle = (fitting + failing) // 2
            if self._fits(middle):
                fitting = middle
            else:
                failing = middle
        return f"memory: {failing} samples do not fit"

    def _fits(self, size: int) -> bool:
        trial = self._foreseen(size) or self._try(size)
        self.trials.append(trial)
        if self._on_trial is not None:
            self._on_trial(trial)
        return trial.fits

    def _foreseen(self, size: int) -> Trial | None:
        """A size that would need more than there is, going by the largest before it."""
        known = max((t for t in self.trials if t.memory), key=lambda t: t.size, default=None)
        if known is None or known.memory is None or self._memory is None:
            return None
        need = known.memory * size // known.size
        if need <= self._memory:
            return None
        reason = f"would need about {need} bytes, but only {self._memory} are available"
        return Trial(size, False, memory=need, reason=reason)

    def _try(self, size: int) -> Trial:
        trainer = self._trainer
        start_again(trainer)
        trainer.accumulate = 1
        self.watch.begin(size, self._length // size, counts=self._is_host)
        try:
            train_for_a_while(trainer, self._data, self._num_updates, size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            let_go(error)
            return Trial(size, False, reason="memory ran out")
        if trainer.run.num_micro_batches > 1:
            return Trial(size, False, reason="memory ran out; it would fit in micro-batches")
        memory = self.watch.memory
        if memory is not None and self._memory is not None and memory > self._memory:
            return Trial(
                size,
                False,
                memory=memory,
                reason=f"needs {memory} bytes, but only {self._memory} are available",
            )
        return Trial(size, True, self.watch.samples_per_second, memory)


# The memory that a step needs, and that there is


class SavedBytes(saved_tensors_hooks):
    """Context that counts the bytes that forward passes save for the backward pass: each storage
    once, without weights."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__(self._note, lambda tensor: tensor)
        self.total = 0
        self._seen = {
            _storage(tensor)
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
        }

    def _note(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._seen:
            self._seen.add(storage)
            self.total += storage[1]
        return tensor


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return the address and the size of a tensor's storage; an address alone may be reused for
    another tensor."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is out of memory: of an accelerator, or of the CPU, for which torch has no
    error class."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )


def let_go(error: BaseException) -> None:
    """Free the memory of a failed step."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def available_memory() -> int:
    """Return the available bytes of the machine, or of the container if it has a limit."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError):  # no container, or one without a limit: "max"
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, max(limit - int((CGROUP / "memory.current").read_text()), 0))
    return free


class TrialWatch(Callback):
    """Callback that times full batches and measures the memory of the first."""

    def __init__(self) -> None:
        self._size = 0
        self._num_full = 0
        self._counts = False
        self._times: list[float] = []
        self._started = 0.0
        self._saved: SavedBytes | None = None
        self._counting: AbstractContextManager[Any] = nullcontext()
        self.memory: int | None = None

    def begin(self, size: int, num_full: int, *, counts: bool) -> None:
        """Start a trial: the batch size, the number of batches in an epoch, and whether to count
        saved tensors."""
        self._size = size
        self._num_full = num_full
        self._counts = counts
        self._times = []
        self._saved = None
        self.memory = None
        self._counting = nullcontext()

    @property
    def seconds(self) -> float | None:
        """The median of all updates but the first, which is slower than the others."""
        times = self._times[1:] or self._times
        return statistics.median(times) if times else None

    @property
    def samples_per_second(self) -> float | None:
        return self._size / self.seconds if self.seconds else None

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        return LimitedStream(stream, self._num_full) if is_training else stream

    def on_train_start(self, trainer: Program) -> None:
        if trainer.runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.runtime.device)

    def on_train_step_start(self, trainer: Program, batch: Any) -> None:
        if self._counts and self._saved is None:
            self._saved = SavedBytes(trainer.modules.values())
            self._counting = self._saved
            self._counting.__enter__()
        self._started = _now(trainer)

    def on_train_step_end(self, trainer: Program, batch: Any, result: StepResult) -> None:
        self._end_count()

    def on_update_end(self, trainer: Program) -> None:
        self._times.append(_now(trainer) - self._started)
        if self._saved is not None:
            self.memory = self._saved.total
        elif trainer.runtime.device.type == "cuda":
            self.memory = torch.cuda.max_memory_allocated(trainer.runtime.device)

    def on_exception(self, trainer: Program, error: BaseException) -> None:
        self._end_count()

    def _end_count(self) -> None:
        counting = self._counting
        self._counting = nullcontext()
        counting.__exit__(None, None, None)


def _now(trainer: Program) -> float:
    wait_for(trainer.runtime.device)
    return perf_counter()
