"""Callbacks that measure what training costs: time by its parts, memory, and the time that is
left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .interval import Periodic
from .progress import TimeLeft, done_of

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream
    from ..metrics.rows import StepRow

MEGABYTE = 1 << 20


class TimedUpdate(Protocol):
    """The methods of an optimizer's update that are timed."""

    def backward(self, *args: Any, **kwargs: Any) -> None: ...

    def finish(self, *args: Any, **kwargs: Any) -> None: ...


class TrainTime(Periodic):
    """Logs how many seconds went into data, forward pass, backward pass and optimizer update since
    the last time.

    The metrics are `data_seconds`, `forward_seconds`, `backward_seconds` and `update_seconds`.
    Waiting for data includes moving it to the device and whatever callbacks do between two steps.
    The metrics of two runs are no longer identical where this is used.

    Args:
        every_n_epochs: Log after every n-th epoch.
        every_n_updates: Log after every n-th update.
        every_n_samples: Log after the update that completes n more samples.
        is_exact: Synchronise with the accelerator at each boundary, so that each part has its own
            time.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import TrainTime
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[TrainTime(every_n_epochs=1)], progress="silent"
    ... )
    >>> trainer.train(data, num_epochs=1, batch_size=4).last("forward_seconds") > 0
    True
    """

    prefix = "seconds"

    def __init__(
        self,
        *,
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
        is_exact: bool = True,
    ) -> None:
        super().__init__(
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        self.is_exact = is_exact
        self._seconds: dict[str, float] = dict.fromkeys(
            ("data", "forward", "backward", "update"), 0.0
        )
        self._last = 0.0
        self._waits = False
        self._wrapped: list[TimedUpdate] = []
        self._on_joint: list[Callable[[Any], None]] = []

    def metric_names(self, known: set[str]) -> set[str]:
        return {f"{part}_seconds" for part in self._seconds}

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._waits = self.is_exact and trainer.runtime.device.type == "cuda"
        for update in trainer.run.updates.every():
            self._wrap(update)
        self._on_joint = trainer.run.updates.on_joint
        self._on_joint.append(self._wrap)
        self._mark(None)

    def on_train_step_start(self, trainer: Trainer, batch: Any) -> None:
        self._mark("data")

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        self._mark("forward")

    def on_eval_start(self, trainer: Trainer, data: Stream) -> None:
        self._mark("data")

    def on_eval_end(self, trainer: Trainer, data: Stream) -> None:
        """What an evaluation took belongs to no part of training."""
        self._mark(None)

    def on_loop_end(self, trainer: Trainer) -> None:
        self._unwrap()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._unwrap()

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        measured = {f"{part}_seconds": seconds for part, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return measured

    def _mark(self, part: str | None) -> None:
        """The time since the last mark belongs to this part."""
        if self._waits:
            torch.cuda.synchronize()
        now = perf_counter()
        if part is not None:
            self._seconds[part] += now - self._last
        self._last = now

    def _wrap(self, update: TimedUpdate) -> None:
        """Note when backward passes and updates begin and end: no event tells of it, since nobody
        else needs it."""
        vars(update).update(
            backward=self._timed(update.backward, "backward"),
            finish=self._timed(update.finish, "update"),
        )
        self._wrapped.append(update)

    def _timed(self, function: Callable[..., None], part: str) -> Callable[..., None]:
        def timed(*args: Any, **kwargs: Any) -> None:
            self._mark("forward")
            function(*args, **kwargs)
            self._mark(part)

        return timed

    def _unwrap(self) -> None:
        for update in self._wrapped:
            vars(update).pop("backward", None)
            vars(update).pop("finish", None)
        self._wrapped = []
        if self._wrap in self._on_joint:
            self._on_joint.remove(self._wrap)


class PeakMemory(Periodic):
    """Logs the most memory that was in use so far, in megabytes, as `peak_memory_mb`.

    On CUDA that is the memory that torch had allocated on the device, elsewhere the resident memory
    of the process.

    Args:
        every_n_epochs: Log after every n-th epoch.
        every_n_updates: Log after every n-th update.
        every_n_samples: Log after the update that completes n more samples.

    >>> import torch, loopwright
    >>> from loopwright.callbacks import PeakMemory
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(
    ...     model, optimizer, torch.nn.functional.mse_loss, callbacks=[PeakMemory(every_n_epochs=1)], progress="silent"
    ... )
    >>> trainer.train(data, num_epochs=1, batch_size=4).last("peak_memory_mb") > 0
    True
    """

    prefix = "peak_memory"

    def metric_names(self, known: set[str]) -> set[str]:
        return {"peak_memory_mb"}

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        device = trainer.runtime.device
        if device.type == "cuda":
            return {"peak_memory_mb": torch.cuda.max_memory_allocated(device) / MEGABYTE}
        return {"peak_memory_mb": process_peak() / MEGABYTE}


def process_peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    import resource  # not on every system

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


class ProgressLine(Periodic):
    """Prints the epoch, update and sample that a run is at, its speed, and an estimate of the time
    that is left.

    Epochs are counted from 1, as in the progress bar. The time that is left is estimated from the
    limit that will be reached first and the time of this `train` call so far in this process, with
    the evaluations to come; the speed does not include them.

    Args:
        every_n_epochs: Print after every n-th epoch.
        every_n_updates: Print after every n-th update.
        every_n_samples: Print after the update that completes n more samples.

    >>> from loopwright.callbacks import ProgressLine
    >>> ProgressLine(every_n_updates=100).interval.unit
    'update'
    """

    _left: TimeLeft

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._left = TimeLeft(trainer)

    def on_log(self, trainer: Trainer, rows: list[StepRow]) -> None:
        self._left.log(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._left.end_epoch(trainer)

    def fire(self, trainer: Trainer) -> None:
        progress = trainer.progress
        until = trainer.run.limits
        parts = [
            _place("epoch", progress.epoch + 1, until.epochs),
            _place("update", progress.update, until.updates),
            _place("sample", progress.sample, until.samples),
        ]
        seconds = progress.seconds - progress.call_seconds
        updates = progress.update - progress.call_update
        if seconds > 0 and updates:
            parts.append(f"{updates / seconds:.3g} updates/s")
        done = done_of(trainer)
        left = self._left.of_run(trainer)
        if done is not None and left is not None:
            parts.append(f"{done:.1%} done, {timedelta(seconds=round(left))} to go")
        trainer.run.say("  ".join(parts))


def _place(unit: str, now: int, limit: int | None) -> str:
    return f"{unit} {now}" if limit is None else f"{unit} {now}/{limit}"
