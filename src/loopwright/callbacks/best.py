"""The best value of a metric, and the weights that had it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigurationError
from ..metrics.best import is_better
from .checkpoints import BestModel, finish_writing, open_kept, state_to_keep
from .interval import Watching, logged_metrics, recall_mode

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..checkpoint import AsyncWriter, KeptModels
    from ..run import RunDirectory


class BestMetric(Watching):
    """Logs the best value of a metric so far as `best_<metric>`, and other metrics at that moment.

    A metric of the evaluation that ends an epoch is known only after the epoch's row is written:
    its best is added to the row in the history, not to the metrics file.

    Args:
        metric: The metric to watch.
        mode: "min" or "max" for the values that are better. "auto" decides by the losses that steps
            return and by the metric's name; if the name does not tell, that is an error before the
            first step.
        also: Metrics whose values at that moment are logged as `<name>_at_best_<metric>`.
        every_n_epochs: Look at the metric every n epochs; one of the three intervals may be given.
        every_n_updates: Look at the metric every n updates.
        every_n_samples: Look at the metric every n samples, after the update that reaches them.

    Example:
        >>> from loopwright.callbacks import BestMetric
        >>> sorted(BestMetric("eval_loss", also=["eval_accuracy"]).metric_names(set()))
        ['best_eval_loss', 'eval_accuracy_at_best_eval_loss']
    """

    def __init__(
        self,
        metric: str = "eval_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        also: Sequence[str] = (),
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        super().__init__(
            metric,
            mode,
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        self.also = tuple(also)
        self.best: float | None = None
        self.best_at = 0
        self.others: dict[str, float] = {}
        if self.interval.unit != "epoch":
            self.ignored_events = (*self.ignored_events, "on_train_epoch_end")

    def metric_names(self, known: set[str]) -> set[str]:
        return set(self._named(dict.fromkeys(self.also, 0.0)))

    def required_metrics(self) -> set[str]:
        return {self.metric, *self.also}

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        self._note(trainer, value, metrics)
        if self.interval.unit == "epoch":
            if self._name not in metrics:  # too late for the row as it is
                trainer.history.set_epoch(trainer.progress.epoch - 1, {**metrics, **self._values()})
        else:
            trainer.log_step(self._values())
            trainer.log(self._values())

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Add the best value to the epoch's own row, where a callback has logged the metric by
        then."""
        metrics = logged_metrics(trainer)
        if self.interval.is_due_after_epoch(trainer.progress.epoch + 1) and self.metric in metrics:
            self._note(trainer, metrics[self.metric], metrics, epoch=trainer.progress.epoch + 1)
            trainer.log(self._values())

    def on_train_end(self, trainer: Trainer) -> None:
        if self.best is not None:
            trainer.run.say(
                f"Best {self.metric}: {self.best:.6g} after {self.interval.unit} {self.best_at}"
            )

    def _note(
        self, trainer: Trainer, value: float, metrics: Mapping[str, float], epoch: int | None = None
    ) -> None:
        if is_better(value, self.best, self.mode):
            self.best = value
            self.best_at = self.interval.now(trainer.progress) if epoch is None else epoch
            self.others = {name: metrics[name] for name in self.also if name in metrics}

    @property
    def _name(self) -> str:
        return f"best_{self.metric}"

    def _named(self, others: Mapping[str, float]) -> dict[str, float]:
        best = float("nan") if self.best is None else self.best
        return {self._name: best} | {
            f"{name}_at_best_{self.metric}": v for name, v in others.items()
        }

    def _values(self) -> dict[str, float]:
        return self._named(self.others)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_at": self.best_at, "others": dict(self.others)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_at, self.others = (
            state["best"],
            state["best_at"],
            dict(state["others"]),
        )


class BestCheckpoint(Watching):
    """Keeps the weights that had the best value of a metric, in the folder `kept` of the run
    directory.

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
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        super().__init__(
            metric,
            mode,
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in tolerances):
            raise ConfigurationError(
                f"BestCheckpoint(tolerances={list(tolerances)}): use whole numbers, 0 or more."
            )
        if not min_delta >= 0:
            raise ConfigurationError(f"BestCheckpoint(min_delta={min_delta!r}): use 0 or more.")
        self.tolerances = tuple(tolerances)
        self.min_delta = min_delta
        self.on_error: Literal["raise", "warn"] = on_error
        self.best: float | None = None
        self.num_bad = 0
        self.most_bad = 0  # the longest time without improvement so far
        self._kept: dict[int | None, KeptModels] = {}

    def on_train_start(self, trainer: Trainer) -> None:
        super().on_train_start(trainer)
        if trainer.run.directory is None:
            raise ConfigurationError(
                "BestCheckpoint needs a directory to write to: pass `run_dir=` to the trainer."
            )
        self._check_alone(trainer)
        self._open(trainer, trainer.run.directory)
        if trainer.runtime.is_main:
            for kept in self._kept.values():
                kept.discard(after_update=trainer.progress.update)
                kept.prune()

    def _open(self, trainer: Trainer, run: RunDirectory) -> None:
        from ..checkpoint import KeepPolicy

        for tolerance in () if self._kept else (None, *self.tolerances):
            policy = KeepPolicy(self._label(tolerance), self.mode)
            self._kept[tolerance] = open_kept(trainer, run, policy, self.on_error)

    def _check_alone(self, trainer: Trainer) -> None:
        """Refuse two callbacks that keep models by one metric: each would remove the models of the
        other."""
        for other in trainer.run.callbacks:
            is_twin = (
                isinstance(other, BestCheckpoint)
                and other is not self
                and other.metric == self.metric
            )
            if is_twin or (isinstance(other, BestModel) and other.metric == self.metric):
                raise ConfigurationError(
                    f"{type(other).__name__} and BestCheckpoint both keep the best models by "
                    f"{self.metric!r}: pass one of them."
                )

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        """Keep the weights of an improvement, and of the first value in any case, NaN included."""
        if self.best is not None and not is_better(value, self.best, self.mode, self.min_delta):
            self.num_bad += 1
            self.most_bad = max(self.most_bad, self.num_bad)
            return
        self.best = value if value == value else None
        self.num_bad = 0
        trainer.run.note("best", f"{self.metric} {value:.6g}", metric=self.metric, value=value)
        for tolerance, kept in self._kept.items():
            if tolerance is None or self.most_bad <= tolerance:
                self._save(trainer, kept, value, metrics)

    def on_rewind(self, trainer: Trainer) -> None:
        super().on_rewind(trainer)
        for kept in self._kept.values():
            kept.writer.wait()
            kept.discard(after_update=trainer.progress.update)

    def write_before_save(self, trainer: Trainer) -> Collection[AsyncWriter]:
        for kept in self._kept.values():
            kept.await_resume_point(trainer.progress.update)
        return [kept.writer for kept in self._kept.values()]

    def on_loop_end(self, trainer: Trainer) -> None:
        for kept in self._kept.values():
            kept.writer.wait()
        trainer.runtime.barrier("keeping the best checkpoint")

    def on_train_end(self, trainer: Trainer) -> None:
        for kept in self._kept.values():
            kept.prune()

    def finish_again(self, trainer: Trainer) -> None:
        if trainer.run.directory is not None:
            recall_mode(trainer, self.watched)
            self._open(trainer, trainer.run.directory)
            self.on_train_end(trainer)

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        for kept in self._kept.values():
            finish_writing(trainer, kept.writer)

    def _save(
        self, trainer: Trainer, kept: KeptModels, value: float, metrics: Mapping[str, float]
    ) -> None:
        from ..checkpoint import update_name
        from ..checkpoint.kept import metric_label

        label = metric_label(kept.policy.metric)
        tree, meta = state_to_keep(trainer, metrics)
        kept.save(
            f"{update_name(trainer.progress.update)}-{label}",
            tree,
            meta,
            value=value,
            token=trainer.run.writing_token(),
        )

    def _label(self, tolerance: int | None) -> str:
        return self.metric if tolerance is None else f"{self.metric} tolerance {tolerance}"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "num_bad": self.num_bad, "most_bad": self.most_bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]
        self.num_bad = state["num_bad"]
        self.most_bad = state["most_bad"]
