"""Resume points by time, updates or epochs; `best.py` has the models that are kept to be used."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Literal

from ..callback import Callback
from ..errors import ConfigurationError, public

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter, CheckpointStore

# between what is written at the ends of short epochs, where nothing else was asked for
MIN_SECONDS = 5.0


class Checkpoints(Callback):
    """Writes resume points to the run directory: every n updates, epochs or minutes, whichever
    comes first.

    The end of training is always saved.

    Args:
        every_updates: Save every n updates.
        every_epochs: Save every n epochs; "auto" is every epoch, but not more often than every 5
            seconds.
        every_minutes: Save when this number of minutes has passed since the last resume point.
        keep: The number of resume points that stay.
        asynchronous: Write in a thread; a step then waits only for a copy of the state.
        on_error: "raise" ends training at the next step after a failed write; "warn" only reports
            it.

    Example:
        >>> from loopwright.callbacks import Checkpoints
        >>> Checkpoints(every_updates=500, keep=3).policy.is_due(update=1000)
        True
    """

    precedence = 2  # after the other callbacks, so that their changes are saved

    @public
    def __init__(
        self,
        every_updates: int | None = None,
        every_epochs: int | Literal["auto"] | None = "auto",
        every_minutes: float | None = 5.0,
        *,
        keep: int = 2,
        asynchronous: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        from ..checkpoint import ResumePolicy

        self._min_seconds = 0.0
        if every_epochs == "auto":
            every_epochs = 1
            self._min_seconds = MIN_SECONDS
        self.policy = ResumePolicy(every_updates, every_epochs, every_minutes, keep)
        self.asynchronous = asynchronous
        self.on_error: Literal["raise", "warn"] = on_error
        self._store: CheckpointStore | None = None
        self._saved_at = 0.0
        self._written_at = 0.0
        self._is_prepared = not asynchronous

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.files.directory is None:
            raise no_run_dir("Checkpoints")
        self._saved_at = trainer.progress.seconds
        self._written_at = monotonic()

    def on_update_end(self, trainer: Trainer) -> None:
        store = self._store or self._open(trainer)
        progress = trainer.run.progress
        store.writer.check()
        if not self._is_prepared:  # now there is optimizer state to make room for
            self._prepare(trainer)
        minutes = (progress.seconds - self._saved_at) / 60
        is_due = self.policy.is_due(update=progress.update, minutes_since_last=minutes)
        if trainer.run.stopping.signals.wants_save or is_due:
            trainer.run.stopping.signals.take_save()
            self.save(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        is_due = self.policy.is_due(
            update=trainer.progress.update, epoch_end=trainer.progress.epoch
        )
        if is_due and not self._is_early(trainer):
            self.save(trainer)

    def _is_early(self, trainer: Trainer) -> bool:
        """Whether the last save was too short a time ago, evaluations included; the clock of rank 0
        decides."""
        if not self._min_seconds:
            return False
        seconds = monotonic() - self._written_at
        return bool(trainer.runtime.broadcast_object(seconds < self._min_seconds))

    def on_rewind(self, trainer: Trainer) -> None:
        """Remove the resume points of the updates that are repeated."""
        store = self._store or self._open(trainer)
        store.writer.wait()
        if trainer.progress.in_epoch:
            self.save(trainer, wait=True)
        store.discard(after_update=trainer.progress.update)

    def on_loop_end(self, trainer: Trainer) -> None:
        """Save; after a signal, when time may be short, the record of the run is closed while the
        files are synced."""
        from .recorder import RunRecorder

        is_left = trainer.run.is_interrupted
        self.save(trainer, wait=not is_left)
        if is_left and self._store is not None:
            for callback in trainer.run.callbacks:
                if isinstance(callback, RunRecorder):
                    callback.leave(trainer)
            self._store.writer.wait()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if self._store is not None:
            finish_writing(trainer, self._store.writer)

    def _open(self, trainer: Trainer) -> CheckpointStore:
        """The store of the run, opened at the first save, so that the first step does not wait for
        it."""
        from ..checkpoint import AsyncWriter, CheckpointStore

        assert trainer.run.files.directory is not None
        writer = AsyncWriter(
            self.on_error, group=trainer.run.writing_group(), check=trainer.run.components.finite
        )
        self._store = CheckpointStore(
            trainer.run.files.directory.checkpoints, self.policy.keep, writer=writer
        )
        return self._store

    def _prepare(self, trainer: Trainer) -> None:
        """Allocate memory for a copy of the state in the writer's thread, before the first save
        needs it."""

        assert self._store is not None
        self._is_prepared = True
        self._store.writer.prepare(trainer._core._capture(has_history=False))

    def save(self, trainer: Trainer, *, wait: bool = False) -> None:
        """Write a resume point now; models that callbacks keep of this update are on disk before it
        is complete."""
        from ..checkpoint import update_name

        trainer = trainer._core
        store = self._store or self._open(trainer)
        wait = wait or not self.asynchronous
        name = update_name(trainer.progress.update)
        token = trainer.run.writing_token()
        tree = trainer._core._capture(has_history=False)
        callbacks = [
            (callback, trainer._trainer_given_to(callback)) for callback in trainer.run.callbacks
        ]
        after = [
            writer for callback, given in callbacks for writer in callback.write_before_save(given)
        ]
        store.save(
            name,
            tree,
            trainer.run.checkpoint_meta(),
            wait=wait,
            token=token,
            history=trainer.history,
            after=after,
        )
        self._saved_at = trainer.progress.seconds
        self._written_at = monotonic()


def no_run_dir(owner: str) -> ConfigurationError:
    """The error of a callback that writes files where there is no run directory."""
    return ConfigurationError(
        "no-run-dir", f"{owner} needs a directory to write to: pass `run_dir=` to the trainer."
    )


def finish_writing(trainer: Trainer, writer: AsyncWriter) -> None:
    """Wait for a writer after an exception; with several ranks abandon it, since other ranks may
    have ended."""
    if trainer.runtime.world > 1:
        writer.abandon()
    writer.wait()
