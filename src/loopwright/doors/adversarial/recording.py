"""What the record of an experiment says between its epochs, each of which is a `train` call: that it is going on."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ...callbacks.checkpoints import Checkpoints
from ...callbacks.recorder import RunRecorder
from ...errors import CheckpointError
from ...run import MetricsStore, RunDirectory, RunManifest, update_manifest
from .config import Saving

if TYPE_CHECKING:
    from ...metrics.history import History
    from ...metrics.progress import Progress
    from ...run.manifest import State
    from ...trainer import Trainer as CoreTrainer

logger = logging.getLogger("loopwright")

_open: dict[Path, ExperimentRun] = {}  # by the real path, of which there is one


class ExperimentRun(RunDirectory):
    """The directory of an experiment: this process's alone from the first epoch until the program ends.

    Another trainer in the same program may go on with the experiment, which ends it for the one before.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._is_busy = False
        self._key = self.path.resolve()
        earlier = _open.get(self._key)
        if earlier is not None and not earlier._is_busy:
            earlier.finish()

    def lock(self) -> Self:
        super().lock()
        self._is_busy = True
        if _open.get(self._key) is not self:
            _open[self._key] = self
            atexit.register(self._finish_at_exit)
        return self

    def unlock(self) -> None:
        """An epoch is over; whoever else would like to write here waits for the end of the experiment."""
        self._is_busy = False

    def finish(self, state: State = "finished", reason: str | None = None) -> None:
        """Note how the experiment ended, unless that was noted when it happened, and let others write here."""
        is_own = self._lock.is_held  # not in a fork of the process that trains
        if is_own and self.has_run and RunManifest.read(self.manifest_path).state == "running":
            update_manifest(self.manifest_path, state=state, reason=reason)
        super().unlock()
        atexit.unregister(self._finish_at_exit)
        if _open.get(self._key) is self:
            del _open[self._key]

    def _finish_at_exit(self) -> None:
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # what ends the program, if anything
        try:
            if error is None:
                self.finish()
            elif isinstance(error, KeyboardInterrupt):
                self.finish("interrupted", "SIGINT")
            else:
                self.finish("failed", f"{type(error).__name__}: {error}")
        except (CheckpointError, OSError) as problem:
            logger.warning("How the experiment in %s ended is not noted: %s", self.path, problem)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What an experiment's files have: how far it went, and its metrics: of steps by name, of epochs by epoch."""

    step: int
    update: int
    epoch: int
    sample: int
    seconds: float
    steps: Mapping[str, Sequence[tuple[int, float]]]
    epochs: Mapping[int, Mapping[str, float]]

    def give_to(self, progress: Progress, history: History) -> None:
        """Let a run that has not begun go on behind all of it."""
        progress.step = progress.recorded_step = self.step
        progress.update, progress.epoch = self.update, self.epoch
        progress.sample, progress.seconds = self.sample, self.seconds
        for name, points in self.steps.items():
            history.add_points(name, points)
        for epoch in range(self.epoch):
            history.set_epoch(epoch, self.epochs.get(epoch + 1, {}))


def read_recorded(run: RunDirectory) -> Recorded | None:
    """What was recorded of an experiment; None where nothing was."""
    if not run.metrics_path.exists():
        return None
    store = MetricsStore(run.metrics_path, read_only=True)
    try:
        step_rows, epoch_rows = store.steps(), store.epochs()
    finally:
        store.close()
    steps: dict[str, list[tuple[int, float]]] = {}
    epochs: dict[int, dict[str, float]] = {}
    for _, step, name, value in step_rows:
        steps.setdefault(name, []).append((step, value))
    for epoch, _, name, value in epoch_rows:
        epochs.setdefault(epoch, {})[name] = value
    last = max((row[1] for row in step_rows), default=0)
    update = max((row[0] for row in step_rows), default=last)
    counted = RunManifest.read(run.manifest_path).progress if run.has_run else {}
    sample, seconds = int(counted.get("sample", 0)), float(counted.get("seconds", 0.0))
    return Recorded(last, update, max(epochs, default=0), sample, seconds, steps, epochs)


class EpochRecorder(RunRecorder):
    """Records epochs as the core records runs; that one is over does not end the experiment."""

    def _close(self, trainer: CoreTrainer, state: State, reason: str | None) -> None:
        super()._close(trainer, "running" if state == "finished" else state, reason)


class ResumePoints(Checkpoints):
    """Resume points inside epochs; the end of an epoch writes one only if a signal is why it ended."""

    def __init__(self, settings: Saving) -> None:
        super().__init__(settings.resume_updates, None, settings.resume_minutes)

    def on_loop_end(self, trainer: CoreTrainer) -> None:
        if trainer.run.is_interrupted:
            super().on_loop_end(trainer)
        elif self._store is not None:
            self._store.wait()
