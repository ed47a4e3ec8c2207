"""The best value of a metric, and the models that had it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ..checkpoint.policy import KeepPolicy
from ..errors import ConfigurationError, check_number, public
from ..metrics.best import BestSoFar
from .checkpoints import MIN_SECONDS, finish_writing, no_run_dir
from .interval import Every, Watching, cut_epoch, logged_metrics, recall_mode

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter, KeptModels


class BestMetric(Watching):
    """Logs the best value of a metric so far as `best_<metric>`.

    A metric of the evaluation that ends an epoch is known only after the epoch's row is written:
    its best is added to the row in the history, not to the metrics file.

    Args:
        metric: The metric to watch.
        mode: "min" or "max" for the values that are better. "auto" decides by the losses that steps
            return and by the metric's name; if the name does not tell, that is an error before the
            first step.
        every_n_epochs: Look at the metric every n epochs; one of the three intervals may be given.
        every_n_updates: Look at the metric every n updates.
        every_n_samples: Look at the metric every n samples, after the update that reaches them.

    Example:
        >>> from loopwright.callbacks import BestMetric
        >>> BestMetric("eval_loss").metric_names(set())
        {'best_eval_loss'}
    """

    def __init__(
        self,
        metric: str = "eval_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        **every: Unpack[Every],
    ) -> None:
        super().__init__(metric, mode, **every)
        if self.interval.unit != "epoch":
            self.ignored_events = (*self.ignored_events, "on_train_epoch_end")

    def metric_names(self, known: set[str]) -> set[str]:
        return {f"best_{self.metric}"}

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        values = self._with(value, self.interval.now(trainer.progress))
        if self.interval.unit != "epoch":
            trainer.log_step(values)
            trainer.log(values)
        elif f"best_{self.metric}" not in metrics:  # too late for the row as it is
            trainer.history.set_epoch(trainer.progress.epoch - 1, {**metrics, **values})

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Add the best value to the epoch's own row, where a callback has logged the metric."""
        metrics = logged_metrics(trainer)
        epoch = trainer.progress.epoch + 1
        if self.interval.is_due_after_epoch(epoch) and self.metric in metrics:
            trainer.log(self._with(metrics[self.metric], epoch))

    def _with(self, value: float, at: int) -> dict[str, float]:
        """Take one more value, and return what is to be logged then."""
        self.watched.add(value, at)
        return {f"best_{self.metric}": math.nan if self.best is None else self.best}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_at": self.best_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watched.so_far = BestSoFar(state["best"], state["best_at"])


class ModelKeeper(Watching):
    """Base class of callbacks that keep the models with the best values of a metric.

    The models are in the folder `kept` of the run directory, on disk before a resume point that
    relies on them is complete, and when training ends.
    """

    on_error: Literal["raise", "warn"]

    def __init__(
        self,
        metric: str,
        mode: Literal["auto", "min", "max"],
        on_error: Literal["raise", "warn"],
        **options: Any,
    ) -> None:
        super().__init__(metric, mode, takes_first=True, **options)
        self.on_error = on_error
        self.kept: list[KeptModels] = []  # by one policy each; empty without a run directory
        self._written_at = 0.0

    def policies(self) -> list[KeepPolicy]:
        """Which models are kept, once the metric's mode is known."""
        raise NotImplementedError

    def keep_model(
        self, trainer: Trainer, value: float, metrics: Mapping[str, float], *, is_best: bool
    ) -> None:
        """Keep the weights of this moment if they are worth it."""

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        self._open(trainer)
        for kept in self.kept:
            kept.discard(after_update=trainer.progress.update)
            kept.prune()

    def _open(self, trainer: Trainer) -> None:
        """Open the kept models; refuse another keeper by this metric, which would remove them."""
        from ..checkpoint import AsyncWriter, KeptModels

        run = trainer.run
        if run.files.directory is None or self.kept:
            return
        keepers = [other for other in run.callbacks if isinstance(other, ModelKeeper)]
        for other in keepers:
            if other is not self and other.metric == self.metric:
                raise ConfigurationError(
                    "two-keepers",
                    f"{type(other).__name__} and {type(self).__name__} both keep the best models "
                    f"by {self.metric!r}: pass one of them.",
                )
        for policy in self.policies():
            writer = AsyncWriter(
                self.on_error, group=run.writing_group(), check=run.components.finite
            )
            kept = KeptModels(
                run.files.directory.kept,
                policy,
                writer=writer,
                resume_points=run.files.directory.checkpoints,
            )
            self.kept.append(kept)

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        is_best = self.watched.add(value, self.interval.now(trainer.progress))
        if is_best:
            trainer.run.note("best", f"{self.metric} {value:.6g}", metric=self.metric, value=value)
        self.keep_model(trainer, value, metrics, is_best=is_best)

    def hold(
        self,
        trainer: Trainer,
        kept: KeptModels,
        value: float,
        metrics: Mapping[str, float],
        name: str,
    ) -> None:
        """Take a copy of the weights, which `write_held` writes."""
        kept.hold(
            name,
            {"models": trainer.run.capture_models()},
            trainer.run.checkpoint_meta() | {"metrics": dict(metrics)},
            value=value,
            token=trainer.run.writing_token(),
        )

    def write_held(self) -> None:
        """Start writing the models that are held."""
        for kept in self.kept:
            if kept.is_holding:
                self._written_at = monotonic()
                kept.start()

    def on_rewind(self, trainer: Trainer) -> None:
        super().on_rewind(trainer)
        for kept in self.kept:
            kept.writer.wait()
            kept.discard(after_update=trainer.progress.update)

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        for kept in self.kept:
            kept.await_resume_point(trainer.progress.update)
        self.write_held()
        return [kept.writer for kept in self.kept]

    def on_loop_end(self, trainer: Trainer) -> None:
        self.write_held()

    def on_train_end(self, trainer: Trainer) -> None:
        for kept in self.kept:
            kept.writer.wait()
            kept.prune()  # the end of training is saved: nothing else is needed any more
        trainer.runtime.barrier("keeping the best model")

    def finish_again(self, trainer: Trainer) -> None:
        recall_mode(trainer, self.watched)
        self._open(trainer)
        self.on_train_end(trainer)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self.write_held()
        for kept in self.kept:
            finish_writing(trainer, kept.writer)


def _model_name(trainer: Trainer, label: str = "") -> str:
    """The name of a model of this moment, with a label where there may be several."""
    from ..checkpoint import update_name
    from ..checkpoint.store import metric_label

    name = update_name(trainer.progress.update)
    return f"{name}-{metric_label(label)}" if label else name


class BestModel(ModelKeeper):
    """Keeps the weights of the best epochs by a metric, in the run directory or else in memory.

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
        >>> BestModel("eval_accuracy", keep=3).policy
        KeepPolicy(metric='eval_accuracy', mode='max', keep=3)
    """

    precedence = 0  # it looks at complete rows only

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
        super().__init__(metric, mode, on_error)
        KeepPolicy(metric, keep=keep)  # refuses a wrong number now
        self.keep = keep
        self.restore = restore
        self.required = required
        self._weights: dict[str, Any] | None = None

    @property
    def policy(self) -> KeepPolicy:
        """Which models are kept."""
        return KeepPolicy(self.metric, self.mode, self.keep)

    def policies(self) -> list[KeepPolicy]:
        return [self.policy]

    def required_metrics(self) -> set[str]:
        return {self.metric} if self.required else set()

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.files.directory is None and not self.restore:
            trainer.run.say(
                "Without a run directory, BestModel writes no file: pass `run_dir=` to the "
                "trainer, or `BestModel(restore=True)` to get the best weights back when training "
                "ends."
            )
        super().on_train_start(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        if self.required or self.metric in metrics:
            super().on_epoch_end(trainer, metrics)

    def keep_model(
        self, trainer: Trainer, value: float, metrics: Mapping[str, float], *, is_best: bool
    ) -> None:
        """Keep the model if it is one of the best; rank 0 decides that, and every rank saves."""
        from ..checkpoint import snapshot

        if not self.kept:
            if is_best:
                self._weights = snapshot(trainer.run.capture_models())
            return
        (kept,) = self.kept
        num_keepers = sum(isinstance(other, BestModel) for other in trainer.run.callbacks)
        name = _model_name(trainer, self.metric if num_keepers > 1 else "")
        wants = trainer.runtime.is_main and kept.wants(name, value, trainer.progress.update)
        is_time = monotonic() - self._written_at >= MIN_SECONDS
        wants, is_time = trainer.runtime.broadcast_object((wants, is_time))
        if wants:
            self.hold(trainer, kept, value, metrics, name)
        if is_time:
            self.write_held()

    def on_loop_end(self, trainer: Trainer) -> None:
        """Look at an epoch that a limit cut short, which is measured at the end of training."""
        row = cut_epoch(trainer)
        if self.metric in row:
            self.on_epoch_end(trainer, row)
        super().on_loop_end(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Wait for the writer, and with `restore` load the best weights into the models."""
        from ..checkpoint.weights import load_model

        super().on_train_end(trainer)
        if not self.restore:
            return
        weights = self._weights
        if self.kept:
            found = self.kept[0].best()
            weights = None if found is None else found.tree["models"]
        if weights is not None:
            for name, model in trainer.models.items():
                load_model(model, weights[name])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watched.so_far = BestSoFar(state["best"])
        self._weights = state["weights"]


class BestCheckpoint(ModelKeeper):
    """Keeps the weights that had the best value of a metric, in the run directory.

    Args:
        metric: The metric to watch.
        mode: "min" or "max" for the values that are better. "auto" decides by the losses that steps
            return and by the metric's name; if the name does not tell, that is an error before the
            first step.
        tolerances: For each of these numbers, keep also the best weights that early stopping with
            this patience would have left: with 5, the best until the metric did not improve six
            times in a row.
        min_delta: An improvement is better than the best value so far by more than this.
        every_n_epochs: Look at the metric every n epochs; one of the three intervals may be given.
        every_n_updates: Look at the metric every n updates.
        every_n_samples: Look at the metric every n samples, after the update that reaches them.
        on_error: "raise" ends training at the next step after a failed write; "warn" only reports
            it.

    Example:
        >>> from loopwright.callbacks import BestCheckpoint
        >>> BestCheckpoint("eval_rmse", tolerances=[5, 20]).mode
        'min'
    """

    def __init__(
        self,
        metric: str = "eval_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        tolerances: Sequence[int] = (),
        min_delta: float = 0.0,
        on_error: Literal["raise", "warn"] = "raise",
        **every: Unpack[Every],
    ) -> None:
        super().__init__(metric, mode, on_error, min_delta=min_delta, **every)
        for tolerance in tolerances:
            check_number("BestCheckpoint(tolerances", tolerance, least=0)
        self.tolerances = tuple(tolerances)

    def policies(self) -> list[KeepPolicy]:
        labels = [self.metric, *(f"{self.metric} tolerance {n}" for n in self.tolerances)]
        return [KeepPolicy(label, self.mode) for label in labels]

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.run.files.directory is None:
            raise no_run_dir("BestCheckpoint")
        super().on_train_start(trainer)

    def keep_model(
        self, trainer: Trainer, value: float, metrics: Mapping[str, float], *, is_best: bool
    ) -> None:
        most_bad = self.watched.so_far.most_bad
        for kept, tolerance in zip(self.kept, (math.inf, *self.tolerances), strict=True):
            if is_best and most_bad <= tolerance:
                name = _model_name(trainer, kept.policy.metric)
                self.hold(trainer, kept, value, metrics, name)
        self.write_held()

    def state_dict(self) -> dict[str, Any]:
        so_far = self.watched.so_far
        return {"best": so_far.value, "num_bad": so_far.num_bad, "most_bad": so_far.most_bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watched.so_far = BestSoFar(
            state["best"], num_bad=state["num_bad"], most_bad=state["most_bad"]
        )
