"""Time and memory of a step, measured while a trainer trains."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch

from ..data.limited import LimitedStream
from ..data.stream import Stream
from ..hooks import Callback
from ..step import StepResult
from ..trainer import Trainer
from .memory import SavedBytes


class StepWatch(Callback):
    """Times full batches, and measures the memory of the first."""

    def __init__(self) -> None:
        self._size = self._num_full = 0
        self._counts = False
        self._times: list[float] = []
        self._started = 0.0
        self._saved: SavedBytes | None = None
        self._counting: AbstractContextManager[None] = nullcontext()
        self.memory: int | None = None

    def begin(self, size: int, num_full: int, *, counts: bool) -> None:
        """Batches of this size come, of which an epoch has so many; `counts` what they keep for the backward pass."""
        self._size, self._num_full, self._counts = size, num_full, counts
        self._times, self._saved, self.memory = [], None, None
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

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.runtime.device)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        if self._counts and self._saved is None:
            self._saved = SavedBytes(trainer.modules.values())
            self._counting = self._saved.counting()
            self._counting.__enter__()
        self._started = _now(trainer)

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        self._end_count()

    def on_update_end(self, trainer: Trainer) -> None:
        self._times.append(_now(trainer) - self._started)
        if self._saved is not None:
            self.memory = self._saved.total
        elif trainer.runtime.device.type == "cuda":
            self.memory = torch.cuda.max_memory_allocated(trainer.runtime.device)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._end_count()

    def _end_count(self) -> None:
        counting, self._counting = self._counting, nullcontext()
        counting.__exit__(None, None, None)


def _now(trainer: Trainer) -> float:
    if trainer.runtime.device.type == "cuda":
        torch.cuda.synchronize(trainer.runtime.device)
    return perf_counter()
