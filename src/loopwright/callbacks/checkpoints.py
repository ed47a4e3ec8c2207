"""Resume points by time, updates or epochs, and kept models by a metric: two things with two policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigurationError, public
from ..hooks import Callback
from .watching import metric_of, resolve_mode

if TYPE_CHECKING:
    from ..checkpoint import CheckpointStore, KeepPolicy, KeptModels
    from ..run import RunDirectory
    from ..trainer import Trainer


class Checkpoints(Callback):
    """Writes resume points to the run directory: every n updates, epochs or minutes, whichever comes first.

    Saving is asynchronous: the step pays for a copy of the state. `on_error` says whether a failed write ends
    training at the next step ("raise") or is only reported ("warn").
    """

    precedence = 2  # to see what all others did

    @public
    def __init__(
        self,
        every_updates: int | None = None,
        every_epochs: int | None = 1,
        every_minutes: float | None = 5.0,
        *,
        keep: int = 2,
        asynchronous: bool = True,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        from ..checkpoint import ResumePolicy

        self.policy = ResumePolicy(every_updates, every_epochs, every_minutes, keep)
        self.asynchronous = asynchronous
        self.on_error: Literal["raise", "warn"] = on_error
        self._store: CheckpointStore | None = None
        self._saved_at = 0.0
        self._is_prepared = not asynchronous

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run is None:
            raise ConfigurationError("Checkpoints needs a place to write to: pass `run_dir=` to the trainer.")
        self._saved_at = trainer.progress.seconds

    def on_update_end(self, trainer: Trainer) -> None:
        store = self._store or self._open(trainer)
        store.check()
        if not self._is_prepared:  # now there is optimizer state to make room for
            self._prepare(trainer)
        minutes = (trainer.progress.seconds - self._saved_at) / 60
        is_due = self.policy.is_due(update=trainer.progress.update, minutes_since_last=minutes)
        if trainer.signals.take_save() or is_due:
            self.save(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        if self.policy.is_due(update=trainer.progress.update, epoch_end=trainer.progress.epoch):
            self.save(trainer)

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
        from ..checkpoint.capture import group_of

        assert trainer.run is not None
        writer = AsyncWriter(self.on_error, group=group_of(trainer))
        self._store = CheckpointStore(trainer.run.checkpoints, self.policy.keep, writer=writer)
        return self._store

    def _prepare(self, trainer: Trainer) -> None:
        """Let memory for the state be taken behind the training, so that the first save is as quick as the others."""
        from ..checkpoint.capture import capture

        assert self._store is not None
        self._is_prepared = True
        self._store.writer.prepare(capture(trainer))

    def save(self, trainer: Trainer, *, wait: bool = False) -> None:
        """Write a resume point now."""
        from ..checkpoint import update_name
        from ..checkpoint.capture import capture, meta_of, token_of

        store = self._store or self._open(trainer)
        wait = wait or not self.asynchronous
        name, token = update_name(trainer.progress.update), token_of(trainer)
        store.save(name, capture(trainer), meta_of(trainer), wait=wait, token=token)
        self._saved_at = trainer.progress.seconds


class BestModel(Callback):
    """Keeps the weights of the best epochs by a metric.

    They go to the run directory; without one, the best are held in memory. `mode` "auto" minimises a metric whose
    name ends in loss or error and maximises any other. `restore` puts the best weights back when training ends, and
    when a finished run is started again. Several may keep models by different metrics.
    An epoch that does not measure the metric is an error, unless `required` is False. `on_error` is about failed
    writes, as that of `Checkpoints`.
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

        self.policy: KeepPolicy = KeepPolicy(metric, resolve_mode(metric, mode), keep)
        self.restore = restore
        self.required = required
        self.on_error: Literal["raise", "warn"] = on_error
        self.best: float | None = None
        self._kept: KeptModels | None = None
        self._label = ""  # what tells its models from those of others
        self._weights: dict[str, Any] | None = None

    def required_metrics(self) -> set[str]:
        return {self.policy.metric} if self.required else set()

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run is not None and self._kept is None:
            self._kept = self._open(trainer, trainer.run)
            if trainer.runtime.is_main:
                self._kept.clean()
                self._kept.discard(after_update=trainer.progress.update)

    def _open(self, trainer: Trainer, run: RunDirectory) -> KeptModels:
        """The kept models of a run; two that keep them by one metric would each remove the other's."""
        from ..checkpoint import AsyncWriter, KeptModels
        from ..checkpoint.capture import group_of
        from ..checkpoint.kept import metric_label

        metric = self.policy.metric
        others = [c for c in trainer.active_callbacks if isinstance(c, BestModel) and c is not self]
        if any(other.policy.metric == metric for other in others):
            raise ConfigurationError(f"Two BestModel callbacks keep models by {metric!r}: pass one of them.")
        self._label = f"-{metric_label(metric)}" if others else ""
        return KeptModels(run.kept, self.policy, writer=AsyncWriter(self.on_error, group=group_of(trainer)))

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        from ..checkpoint import snapshot
        from ..checkpoint.capture import capture_models

        if not self.required and self.policy.metric not in metrics:
            return
        value = metric_of(metrics, self.policy.metric, type(self).__name__)
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
        from ..checkpoint.capture import capture_models, meta_of, token_of

        assert self._kept is not None
        name = f"{update_name(trainer.progress.update)}{self._label}"
        wants = trainer.runtime.is_main and self._kept.wants(name, value, trainer.progress.update)
        if trainer.runtime.broadcast_object(wants):
            tree = {"models": capture_models(trainer)}
            meta = meta_of(trainer) | {"metrics": dict(metrics)}
            self._kept.save(name, tree, meta, value=value, token=token_of(trainer))

    def on_train_end(self, trainer: Trainer) -> None:
        self._put_back(trainer)

    def finish_again(self, trainer: Trainer) -> None:
        if self.restore:
            if trainer.run is not None and self._kept is None:
                self._kept = self._open(trainer, trainer.run)
            self._put_back(trainer)

    def _put_back(self, trainer: Trainer) -> None:
        """Wait for what is being written, and let the models have the best weights if that is wanted."""
        from ..checkpoint.capture import load_model

        weights = self._weights
        if self._kept is not None:
            self._kept.writer.wait()
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
