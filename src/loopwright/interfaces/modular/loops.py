"""The loops of a modular trainer, where they are the user's own: what they iterate, and what they
and their steps return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ...callbacks.ema import EMA
from ...errors import ConfigurationError
from ...metrics.meter import Meter
from ...metrics.result import StepResult
from ...training import steps as loop
from ...training.evaluate import evaluate, measuring

if TYPE_CHECKING:
    from ...data.open import Stream
    from .core import ModularCore
    from .trainer import DreamTrainer


class TrainingOver(BaseException):
    """Training is over and a loop of the user's goes on; no `Exception`, so that no handler of the
    user's stops it."""


class UserLoop:
    """Gives batches to a training loop that the user wrote; a step is over when the loop asks for
    the next batch.

    An epoch ends when the next one begins or the loop ends, so that whatever the loop does after
    its batches, such as a validation, still belongs to it.
    """

    def __init__(self, core: ModularCore) -> None:
        self.core = core
        self._batches: Iterator[Any] | None = None
        self._step: loop.Step | None = None

    def run(self) -> None:
        """Call the user's loop, or the interface's own; one that trains nothing is a mistake."""
        run = self.core.run
        before = (run.updates.calls, run.progress.step)
        self.core.interface.training_loop()
        self.end_epoch()
        if (run.updates.calls, run.progress.step) == before and not run.is_done():
            raise ConfigurationError(
                "loop-trained-nothing",
                "`training_loop` has ended but trained nothing: iterate `self.train_loader` in "
                "it, once for each epoch, and call `self.training_step(batch, batch_idx)` or "
                "`self.backward(loss)` for each batch.",
            )

    def begin_epoch(self) -> Iterator[Any]:
        """The batches of the next epoch, or the rest of the one that a resumed run is in."""
        self.end_epoch()
        run = self.core.run
        if run.is_interrupted or (run.is_done() and not run.progress.is_unrecorded):
            raise TrainingOver
        loop.begin_epoch(run)
        self._batches = self._give_batches()
        return self._batches

    def end_epoch(self) -> None:
        """Close the epoch under way: its row in the history, its schedulers. One left in the middle
        is over, too."""
        if self._batches is None:
            return
        if self._step is not None:
            self._step.is_last = True
        next(self._batches, None)  # a loop that was left by `break` never asked for more
        self._batches = None
        loop.record_epoch(self.core.run, {})

    def _give_batches(self) -> Iterator[Any]:
        core = self.core
        run = core.run
        for step in loop.open_steps(run):
            self._step = step
            core.open_step()
            yield step.batch
            core.end_batch()
            step.result = core.close_step(step.size)
            if step.is_last and not run.window.is_last:
                core.gradients.reset()
        self._step = None
        loop.end_steps(run)
        if run.is_interrupted:
            raise TrainingOver


class Loader:
    """Gives batches on the device, and each process its part of them; all else is as on the loader
    behind it."""

    def __init__(
        self, loader: Any, iterate: Callable[[], Iterator[Any]], measure: Callable[[], int | None]
    ) -> None:
        self.loader = loader
        self._iterate = iterate
        self._measure = measure

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def __len__(self) -> int:
        """Batches in an epoch, as this process sees them."""
        length = self._measure()
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return length

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)


class Validation:
    """The validation data and what is done with it."""

    def __init__(self, core: ModularCore) -> None:
        self.core = core
        self.defers_signals = False
        self.index = 0
        self._num_samples = 0  # that a loop of the user's own has seen
        self._stream: Stream | None = None

    @property
    def stream(self) -> Stream:
        loader = self.core.loaders[1]
        if loader is None:
            raise ConfigurationError(
                "no-validation-data",
                "There is no validation data: return a second loader from configure_dataloaders.",
            )
        if self._stream is None:
            data = without_padding(loader, self.core.runtime.num_shares)
            self._stream = self.core._open(data, None, shuffle=False)
        return self._stream

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def run(self) -> dict[str, float]:
        """A validation as the core runs it."""
        with self.core.step_set_aside():
            measured = evaluate(self.core.run, self.stream)
        return self._record(measured) if measured else {}

    def run_by(self, call: Callable[[], Any]) -> Any:
        """A validation loop of the user's own; what it logs is averaged over all samples, what it
        returns is kept."""
        core = self.core
        meter = Meter()
        with core.step_set_aside(), self.deferring_signals(), measuring(core.run, meter):
            core.events.emit("on_validation_start")
            self._num_samples = 0
            returned = call()
            # of the samples that it saw; where no process has seen any, of as many on each
            total = sum(core.runtime.gather_each(self._num_samples))
            size = self._num_samples if total else 1
            if returned is not None and size:
                meter.add(StepResult.of(returned, size))
            measured = meter.compute(core.runtime.sum_table, gather=core.runtime.gather_samples)
        self._record(measured)
        return returned

    def _record(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Put what a validation measured into the epoch's row and, inside an epoch, beside the
        step."""
        core = self.core
        core.rounds.validated_at = core.progress.update
        averages = [
            average
            for callback in core.run.callbacks
            if isinstance(callback, EMA)
            for average in callback.decays
        ]
        row = as_validation(measured, averages)
        core.log(row)
        if core.run.metrics.meter.num_pending:
            core.log_step(row)
        core.events.emit("on_validation_end", row)
        return row

    def step(self, batch: Any) -> StepResult:
        """One batch, for the core."""
        core = self.core
        index = self.index
        self.index += 1
        core.events.emit("on_validation_batch_start", batch, index)
        core.open_step()
        core.interface.validation_step(batch, index)
        result = core.close_step(core.run.window.size, is_returned=True)
        core.events.emit("on_validation_batch_end", core.outputs, batch, index)
        return result

    def batches(self) -> Iterator[Any]:
        """Batches for a validation loop of the user's own; a process skips batches of which it has
        no sample."""
        core = self.core
        stream = self.stream
        stream.begin(0)
        for index, (value, size, total) in enumerate(stream):
            if size == 0 and total is not None and not core.runtime.forwards_together:
                continue
            core.run.window.size = size
            self._num_samples += size
            batch = core.prepare_batch(value)
            core.events.emit("on_validation_batch_start", batch, index)
            yield batch
            core.events.emit("on_validation_batch_end", core.outputs, batch, index)
        core.run.window.size = self._num_samples  # of what is logged after the batches

    @contextmanager
    def deferring_signals(self) -> Iterator[None]:
        """A validation that a resumed run would not do again is finished before a signal is
        obeyed."""
        before = self.defers_signals
        self.defers_signals = True
        try:
            yield
        finally:
            self.defers_signals = before


def as_validation(measured: Mapping[str, float], averages: list[str]) -> dict[str, float]:
    """Metrics of a validation under names that begin with val_ or val/, so that none is taken for
    one of training.

    Args:
        measured: The metrics by name.
        averages: Prefixes of averages of the weights, which were validated too.
    """
    begins = ("val_", "val/", *(f"{name}_val{mark}" for name in averages for mark in "_/"))
    row: dict[str, float] = {}
    for name, value in measured.items():
        new = name if name.startswith(begins) else f"val_{name}"
        if new in row:
            raise ConfigurationError(
                "one-name-twice",
                f"A validation measured {new.removeprefix('val_')!r} and {new!r}, which have the "
                "same name in the history, where metrics of a validation begin with val_. Remove "
                "or rename one of them.",
            )
        row[new] = value
    return row


def without_padding(loader: Any, num_shares: int) -> Any:
    """A validation loader whose DistributedSampler repeats samples to make parts equal, as one that
    repeats none.

    Processes then divide its batches as they divide any others: every sample counts once.
    """
    sampler = getattr(loader, "sampler", None)
    if not isinstance(loader, DataLoader) or type(sampler) is not DistributedSampler:
        return loader
    is_whole = not sampler.shuffle and not sampler.drop_last
    if not is_whole or sampler.num_replicas != num_shares or loader.batch_size is None:
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size * num_shares,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=bool(loader.pin_memory),
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
    )


def measured_in(interface: DreamTrainer, returned: Any) -> Any:
    """What a step returned, with the metrics of its outputs and targets in place of those."""
    if not isinstance(returned, Mapping) or not {"outputs", "targets"} <= returned.keys():
        return returned
    rest = {name: value for name, value in returned.items() if name not in ("outputs", "targets")}
    with torch.no_grad():
        return {**rest, **interface.compute_metrics(returned["outputs"], returned["targets"])}
