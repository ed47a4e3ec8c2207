"""The memory that a step needs for its backward pass, the available memory, and out-of-memory
errors."""

from __future__ import annotations

import gc
import os
import statistics
import traceback
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ..callback import Callback
from ..data.open import Stream
from ..data.stream import LimitedStream
from ..metrics.result import StepResult
from ..training.program import Program

CGROUP = Path("/sys/fs/cgroup")


class SavedBytes:
    """The bytes that forward passes save for the backward pass: each storage once, without
    weights."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self.total = 0
        self._seen = {
            _storage(tensor)
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
        }

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Context in which saved tensors are counted."""
        with torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor):
            yield

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
    found = [_of_machine(), _of_container()]
    return min(amount for amount in found if amount is not None)


def _of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_container() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        return (
            None
            if limit == "max"
            else max(int(limit) - int((CGROUP / "memory.current").read_text()), 0)
        )
    except (OSError, ValueError):
        return None


class StepWatch(Callback):
    """Callback that times full batches and measures the memory of the first."""

    def __init__(self) -> None:
        self._size = 0
        self._num_full = 0
        self._counts = False
        self._times: list[float] = []
        self._started = 0.0
        self._saved: SavedBytes | None = None
        self._counting: AbstractContextManager[None] = nullcontext()
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
            self._counting = self._saved.counting()
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
    if trainer.runtime.device.type == "cuda":
        torch.cuda.synchronize(trainer.runtime.device)
    return perf_counter()
