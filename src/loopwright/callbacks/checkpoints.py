"""Resume points by time, updates or epochs, and kept models by a metric: two things with two policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..errors import ConfigurationError, public
from ..metrics.direction import WatchedMetric
from .interval import metric_of, recall_mode

if TYPE_CHECKING:
    from ..checkpoint import AsyncWriter, CheckpointStore, KeepPolicy, KeptModels
    from ..run import RunDirectory
    from ..trainer import Trainer


MIN_SECONDS = 5.0  # between what is written at the ends of short epochs, where nothing else was asked for


class Checkpoints(Callback):
    """Writes resume points to the run directory: every n updates, epochs or minutes, whichever comes first.

    `every_epochs` "auto" is every epoch, but not more often than every `min_seconds` (5, if that is None). What is
    given as a number is obeyed exactly, unless `min_seconds` is given too. The end of training is always saved.
    Saving is asynchronous: the step pays for a copy of the state. `on_error` says whether a failed write ends
    training at the next step ("raise") or is only reported ("warn").
    """

    precedence = 2  # to see what all others did

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
            min_seconds_epochs=(MIN_SECONDS if is_auto else 0.0) if min_seconds is None else min_seconds,
        )
        self.asynchronous = asynchronous
        self.on_error: Literal["raise", "warn"] = on_error
        self._store: CheckpointStore | None = None
        self._saved_at = 0.0
        self._written_at = 0.0
        self._is_prepared = not asynchronous

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run is None:
            raise ConfigurationError("Checkpoints needs a place to write to: pass `run_dir=` to the trainer.")
        self._saved_at, self._written_at = trainer.progress.seconds, monotonic()

    def on_update_end(self, trainer: Trainer) -> None:
        store = self._store or self._open(trainer)
        store.check()
        if not self._is_prepared:  # now there is optimizer state to make room for
            self._prepare(trainer)
        minutes = (trainer.progress.seconds - self._saved_at) / 60
        is_late = self.policy.is_late(minutes)
        is_due = is_late or (
            self.policy.is_due(update=trainer.progress.update)
            and not self._is_early(trainer, self.policy.min_seconds_updates)
        )
        if trainer.signals.take_save() or is_due:
            self.save(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        is_due = self.policy.is_due(update=trainer.progress.update, epoch_end=trainer.progress.epoch)
        if is_due and not self._is_early(trainer, self.policy.min_seconds_epochs):
            self.save(trainer)

    def _is_early(self, trainer: Trainer, min_seconds: float) -> bool:
        """Whether the last save was too short a time ago, evaluations included; the first process's clock decides."""
        return min_seconds > 0 and bool(trainer.runtime.broadcast_object(monotonic() - self._written_at < min_seconds))

    def on_rewind(self, trainer: Trainer) -> None:
        """What was saved since belongs to updates that are now taken differently."""
        store = self._store or self._open(trainer)
        store.wait()
        if trainer.progress.in_epoch:
            self.save(trainer, wait=True)
        store.discard(after_update=trainer.progress.update)

    def on_loop_end(self, trainer: Trainer) -> None:
        self.save(trainer, wait=True)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        if self._store is not None:
            if trainer.runtime.world > 1:  # others may be gone, and their parts with them
                self._store.writer.abandon()
            self._store.wait()

    def _open(self, trainer: Trainer) -> CheckpointStore:
        """The store of the run, which the first step need not wait for."""
        from ..checkpoint import AsyncWriter, CheckpointStore
        from ..checkpoint.state import group_of

        assert trainer.run is not None
        writer = AsyncWriter(self.on_error, group=group_of(trainer))
        self._store = CheckpointStore(trainer.run.checkpoints, self.policy.keep, writer=writer)
        return self._store

    def _prepare(self, trainer: Trainer) -> None:
        """Let memory for the state be taken behind the training, so that the first save is as quick as the others."""
        from ..checkpoint.state import capture

        assert self._store is not None
        self._is_prepared = True
        self._store.writer.prepare(capture(trainer, has_history=False))

    def save(self, trainer: Trainer, *, wait: bool = False) -> None:
        """Write a resume point now; what other callbacks keep of this moment is on disk before it is complete."""
        from ..checkpoint import update_name
        from ..checkpoint.state import capture, meta_of, token_of

        trainer = trainer.core
        store = self._store or self._open(trainer)
        wait = wait or not self.asynchronous
        name, token = update_name(trainer.progress.update), token_of(trainer)
        tree = capture(trainer, has_history=False)
        callbacks = [(callback, trainer.trainer_for(callback)) for callback in trainer.active_callbacks]
        after = [writer for callback, given in callbacks for writer in callback.write_before_save(given)]
        store.save(name, tree, meta_of(trainer), wait=wait, token=token, history=trainer.history, after=after)
        self._saved_at, self._written_at = trainer.progress.seconds, monotonic()


class BestModel(Callback):
    """Keeps the weights of the best epochs by a metric.

    They go to the run directory; without one, the best are held in memory. `mode` "auto" goes by what the steps return
    as losses and by the metric's name; a name that does not say it is an error. `restore` puts the best weights back
    when training ends, and when a finished run is started again. Several may keep models by different metrics.
    An epoch that does not measure the metric is an error, unless `required` is False. `on_error` is about failed
    writes, as that of `Checkpoints`. Where epochs are short, the best is held in memory for up to 5 seconds before
    it is written; it is always on disk before a resume point that relies on it, and when training ends.
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
        self.metric, self.keep = metric, keep
        self.watched = WatchedMetric(metric, mode, type(self).__name__)
        self.restore = restore
        self.required = required
        self.on_error: Literal["raise", "warn"] = on_error
        self.best: float | None = None
        self._kept: KeptModels | None = None
        self._written_at = 0.0
        self._label = ""  # what tells its models from those of others
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
        if trainer.run is not None and self._kept is None:
            self._kept = self._open(trainer, trainer.run)
            if trainer.runtime.is_main:
                self._kept.clean()
                self._kept.discard(after_update=trainer.progress.update)
                self._kept.prune()

    def _open(self, trainer: Trainer, run: RunDirectory) -> KeptModels:
        """The kept models of a run; two that keep them by one metric would each remove the other's."""
        from ..checkpoint import AsyncWriter, KeptModels
        from ..checkpoint.kept import metric_label
        from ..checkpoint.state import group_of

        metric = self.metric
        others = [c for c in trainer.active_callbacks if isinstance(c, BestModel) and c is not self]
        if any(other.metric == metric for other in others):
            raise ConfigurationError(f"Two BestModel callbacks keep models by {metric!r}: pass one of them.")
        self._label = f"-{metric_label(metric)}" if others else ""
        writer = AsyncWriter(self.on_error, group=group_of(trainer))
        return KeptModels(run.kept, self.policy, writer=writer, resume_points=run.checkpoints)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        from ..checkpoint import snapshot
        from ..checkpoint.state import capture_models

        if not self.required and self.metric not in metrics:
            return
        value = metric_of(metrics, self.metric, type(self).__name__)
        is_best = self.best is None or self.policy.better(value, self.best)
        if is_best:
            self.best = value
        if self._kept is not None:
            self._offer(trainer, metrics, value)
        elif is_best:
            self._weights = snapshot(capture_models(trainer))

    def _offer(self, trainer: Trainer, metrics: Mapping[str, float], value: float) -> None:
        """Save the model if it is one of the best; with several processes the first says so, and all save."""
        from ..checkpoint import update_name
        from ..checkpoint.state import capture_models, meta_of, token_of

        assert self._kept is not None
        name = f"{update_name(trainer.progress.update)}{self._label}"
        wants = trainer.runtime.is_main and self._kept.wants(name, value, trainer.progress.update)
        is_time = monotonic() - self._written_at >= MIN_SECONDS
        wants, is_time = trainer.runtime.broadcast_object((wants, is_time))
        if wants:
            tree = {"models": capture_models(trainer)}
            meta = meta_of(trainer) | {"metrics": dict(metrics)}
            self._kept.hold(name, tree, meta, value=value, token=token_of(trainer))
        if is_time:
            self._start()

    def _start(self) -> None:
        """Start writing the model that is held, if there is one."""
        if self._kept is not None and self._kept.is_holding:
            self._written_at = monotonic()
            self._kept.start()

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        self._start()
        return () if self._kept is None else (self._kept.writer,)

    def on_loop_end(self, trainer: Trainer) -> None:
        self._start()

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self._start()
        if self._kept is not None:
            if trainer.runtime.world > 1:  # others may be gone, and their parts with them
                self._kept.writer.abandon()
            self._kept.writer.wait()

    def on_train_end(self, trainer: Trainer) -> None:
        self._put_back(trainer)

    def finish_again(self, trainer: Trainer) -> None:
        recall_mode(trainer, self.watched)
        if trainer.run is not None and self._kept is None:
            self._kept = self._open(trainer, trainer.run)
        self._put_back(trainer)

    def _put_back(self, trainer: Trainer) -> None:
        """Wait for what is being written, and let the models have the best weights if that is wanted."""
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
        self.best, self._weights = state["best"], state["weights"]
