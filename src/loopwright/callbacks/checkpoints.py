"""Resume points by time, updates or epochs, and kept models by a metric: two things with two
policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..errors import ConfigurationError, public
from ..metrics.best import WatchedMetric, is_better
from .interval import metric_of, recall_mode

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter, CheckpointStore, KeepPolicy, KeptModels
    from ..run import RunDirectory


MIN_SECONDS = (
    5.0  # between what is written at the ends of short epochs, where nothing else was asked for
)


class Checkpoints(Callback):
    """Writes resume points to the run directory: every n updates, epochs or minutes, whichever
    comes first.

    The end of training is always saved.

    Args:
        every_updates: Save every n updates.
        every_epochs: Save every n epochs; "auto" is every epoch, but not more often than every 5
            seconds.
        every_minutes: Save when this number of minutes has passed since the last resume point.
        min_seconds: The least number of seconds between two resume points by updates or epochs.
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
        min_seconds: float | None = None,
        keep: int = 2,
        asynchronous: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        from ..checkpoint import ResumePolicy

        is_auto = every_epochs == "auto"
        self.policy = ResumePolicy(
            every_updates,
            1 if every_epochs == "auto" else every_epochs,
            every_minutes,
            keep,
            min_seconds_updates=min_seconds or 0.0,
            min_seconds_epochs=(MIN_SECONDS if is_auto else 0.0)
            if min_seconds is None
            else min_seconds,
        )
        self.asynchronous = asynchronous
        self.on_error: Literal["raise", "warn"] = on_error
        self._store: CheckpointStore | None = None
        self._saved_at = 0.0
        self._written_at = 0.0
        self._is_prepared = not asynchronous

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.directory is None:
            raise ConfigurationError(
                "Checkpoints needs a directory to write to: pass `run_dir=` to the trainer."
            )
        self._saved_at, self._written_at = trainer.progress.seconds, monotonic()

    def on_update_end(self, trainer: Trainer) -> None:
        store = self._store or self._open(trainer)
        progress = trainer.run.progress
        policy = self.policy
        store.writer.check()
        if not self._is_prepared:  # now there is optimizer state to make room for
            self._prepare(trainer)
        is_due = policy.every_minutes is not None and policy.is_late(
            (progress.seconds - self._saved_at) / 60
        )
        if not is_due and policy.every_updates is not None:
            is_due = policy.is_due(update=progress.update) and not self._is_early(
                trainer, policy.min_seconds_updates
            )
        if trainer.run.signals.wants_save or is_due:
            trainer.run.signals.take_save()
            self.save(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        is_due = self.policy.is_due(
            update=trainer.progress.update, epoch_end=trainer.progress.epoch
        )
        if is_due and not self._is_early(trainer, self.policy.min_seconds_epochs):
            self.save(trainer)

    def _is_early(self, trainer: Trainer, min_seconds: float) -> bool:
        """Whether the last save was too short a time ago, evaluations included; the clock of rank 0
        decides."""
        return min_seconds > 0 and bool(
            trainer.runtime.broadcast_object(monotonic() - self._written_at < min_seconds)
        )

    def on_rewind(self, trainer: Trainer) -> None:
        """Remove the resume points of the updates that are repeated."""
        store = self._store or self._open(trainer)
        store.wait()
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
            self._store.wait()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if self._store is not None:
            finish_writing(trainer, self._store.writer)

    def _open(self, trainer: Trainer) -> CheckpointStore:
        """The store of the run, opened at the first save, so that the first step does not wait for
        it."""
        from ..checkpoint import AsyncWriter, CheckpointStore

        assert trainer.run.directory is not None
        writer = AsyncWriter(
            self.on_error, group=trainer.run.writing_group(), check=trainer.run.components.finite
        )
        self._store = CheckpointStore(
            trainer.run.directory.checkpoints, self.policy.keep, writer=writer
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
            (callback, trainer._trainer_for(callback)) for callback in trainer.run.callbacks
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
        self._saved_at, self._written_at = trainer.progress.seconds, monotonic()


class BestModel(Callback):
    """Keeps the weights of the best epochs by a metric, in the run directory or, without one, in
    memory.

    Several of these callbacks may keep models by different metrics; `loopwright.run.choose` says
    which model is the best of the run. Where epochs are short, the best model is held in memory for
    up to 5 seconds before it is written; it is always on disk before a resume point that relies on
    it, and when training ends.

    Args:
        metric: The metric to watch.
        mode: "min" or "max" for the values that are better. "auto" decides by the losses that steps
            return and by the metric's name; if the name does not tell, that is an error before the
            first step.
        keep: The number of models that stay.
        restore: Put the best weights back when training ends, and when a finished run is started
            again.
        required: Whether an epoch that does not measure the metric is an error.
        on_error: "raise" ends training at the next step after a failed write; "warn" only reports
            it.

    Example:
        >>> from loopwright.callbacks import BestModel
        >>> BestModel("eval_accuracy", keep=3).policy.better(0.9, 0.8)
        True
    """

    @public
    def __init__(
        self,
        metric: str = "eval_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        keep: int = 1,
        restore: bool = False,
        required: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        from ..checkpoint import KeepPolicy

        KeepPolicy(metric, keep=keep)  # refuses a wrong number now
        self.metric = metric
        self.keep = keep
        self.watched = WatchedMetric(metric, mode, type(self).__name__)
        self.restore = restore
        self.required = required
        self.on_error: Literal["raise", "warn"] = on_error
        self.best: float | None = None
        self._kept: KeptModels | None = None
        self._written_at = 0.0
        self._label = ""  # part of the names of its models, where several callbacks keep models
        self._weights: dict[str, Any] | None = None

    @property
    def policy(self) -> KeepPolicy:
        from ..checkpoint import KeepPolicy

        return KeepPolicy(self.metric, self.watched.mode, self.keep)

    def watched_metrics(self) -> Iterable[WatchedMetric]:
        return (self.watched,)

    def required_metrics(self) -> set[str]:
        return {self.metric} if self.required else set()

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.directory is None and not self.restore:
            trainer.run.say(
                f"Without a run directory, {type(self).__name__} writes no file: pass `run_dir=` "
                f"to the trainer, or `{type(self).__name__}(restore=True)` to get the best "
                "weights back when training ends."
            )
        if trainer.run.directory is not None and self._kept is None:
            self._kept = self._open(trainer, trainer.run.directory)
            if trainer.runtime.is_main:
                self._kept.clean()
                self._kept.discard(after_update=trainer.progress.update)
                self._kept.prune()

    def _open(self, trainer: Trainer, run: RunDirectory) -> KeptModels:
        """The kept models of a run; two callbacks by one metric are refused: each would remove the
        other's models."""
        from ..checkpoint.kept import metric_label

        metric = self.metric
        others = [c for c in trainer.run.callbacks if isinstance(c, BestModel) and c is not self]
        if any(other.metric == metric for other in others):
            raise ConfigurationError(
                f"Two BestModel callbacks keep the best models by {metric!r}: pass only one of "
                "them."
            )
        self._label = f"-{metric_label(metric)}" if others else ""
        return open_kept(trainer, run, self.policy, self.on_error)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        from ..checkpoint import snapshot

        if not self.required and self.metric not in metrics:
            return
        value = metric_of(metrics, self.metric, type(self).__name__)
        is_best = self.best is None or is_better(value, self.best, self.watched.mode)
        if is_best:
            self.best = value
            trainer.run.note("best", f"{self.metric} {value:.6g}", metric=self.metric, value=value)
        if self._kept is not None:
            self._offer(trainer, metrics, value)
        elif is_best:
            self._weights = snapshot(trainer.run.capture_models())

    def _offer(self, trainer: Trainer, metrics: Mapping[str, float], value: float) -> None:
        """Save the model if it is one of the best; rank 0 decides that, and every rank saves."""
        from ..checkpoint import update_name

        assert self._kept is not None
        name = f"{update_name(trainer.progress.update)}{self._label}"
        wants = trainer.runtime.is_main and self._kept.wants(name, value, trainer.progress.update)
        is_time = monotonic() - self._written_at >= MIN_SECONDS
        wants, is_time = trainer.runtime.broadcast_object((wants, is_time))
        if wants:
            tree, meta = state_to_keep(trainer, metrics)
            self._kept.hold(name, tree, meta, value=value, token=trainer.run.writing_token())
        if is_time:
            self._start()

    def _start(self) -> None:
        """Start writing the model that is held, if there is one."""
        if self._kept is not None and self._kept.is_holding:
            self._written_at = monotonic()
            self._kept.start()

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        if self._kept is None:
            return ()
        self._kept.await_resume_point(trainer.progress.update)
        self._start()
        return (self._kept.writer,)

    def on_loop_end(self, trainer: Trainer) -> None:
        """Look at the row of an epoch that a limit cut short, which is measured at the end of
        training."""
        row = cut_epoch(trainer)
        if self.metric in row:
            self.on_epoch_end(trainer, row)
        self._start()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._start()
        if self._kept is not None:
            finish_writing(trainer, self._kept.writer)

    def on_train_end(self, trainer: Trainer) -> None:
        self._put_back(trainer)

    def finish_again(self, trainer: Trainer) -> None:
        recall_mode(trainer, self.watched)
        if trainer.run.directory is not None and self._kept is None:
            self._kept = self._open(trainer, trainer.run.directory)
        self._put_back(trainer)

    def _put_back(self, trainer: Trainer) -> None:
        """Wait for the writer, and with `restore` load the best weights into the models."""
        from ..checkpoint.components import load_model

        weights = self._weights
        if self._kept is not None:
            self._kept.writer.wait()
            self._kept.prune()  # the end of training is saved: nothing else is needed any more
            trainer.runtime.barrier("keeping the best model")
            found = self._kept.best() if self.restore else None
            weights = found.tree["models"] if found is not None else None
        if self.restore and weights is not None:
            for name, model in trainer.models.items():
                load_model(model, weights[name])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]
        self._weights = state["weights"]


def cut_epoch(trainer: Trainer) -> Mapping[str, float]:
    """The row of an epoch that a limit or a stop of this `train` call has cut short; empty where
    none did."""
    progress = trainer.progress
    is_cut = progress.call_finished and progress.in_epoch and len(trainer.history) > progress.epoch
    return trainer.history.epochs[-1] if is_cut else {}


def open_kept(
    trainer: Trainer, run: RunDirectory, policy: KeepPolicy, on_error: Literal["raise", "warn"]
) -> KeptModels:
    """The kept models of a run by one metric, with a writer of their own."""
    from ..checkpoint import AsyncWriter, KeptModels

    writer = AsyncWriter(
        on_error, group=trainer.run.writing_group(), check=trainer.run.components.finite
    )
    return KeptModels(run.kept, policy, writer=writer, resume_points=run.checkpoints)


def state_to_keep(
    trainer: Trainer, metrics: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree and the metadata of a kept model: the weights, and the metrics of this moment."""
    return {"models": trainer.run.capture_models()}, trainer.run.checkpoint_meta() | {
        "metrics": dict(metrics)
    }


def finish_writing(trainer: Trainer, writer: AsyncWriter) -> None:
    """Wait for a writer after an exception; with several ranks abandon it, since other ranks may
    have ended."""
    if trainer.runtime.world > 1:
        writer.abandon()
    writer.wait()
