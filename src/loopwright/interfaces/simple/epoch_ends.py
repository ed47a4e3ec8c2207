"""The ends of the simple interface's epochs: the best model, regular checkpoints, early stopping,
callbacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callback import named_hook
from ...callbacks.interval import metric_of
from ...callbacks.stopping import EarlyStopping
from ...checkpoint.manifest import check_inside
from ...checkpoint.migrations import explained
from ...errors import ConfigurationError, check_arguments, check_number
from ...metrics.best import Mode, WatchedMetric, is_better, settle_all
from ...text import nearest
from ...training.first_batch import measured_on
from .._shared import as_tracker

if TYPE_CHECKING:
    from ...trackers import Track
    from .trainer import Trainer

SAVED = re.compile(r"best_model|checkpoint_latest|checkpoint_epoch_\d+")
EpochCallback = Callable[["Trainer", int, dict[str, float]], Any]


class EpochEnds:
    """The ends of the epochs of one `train` call.

    Args:
        trainer: The interface's trainer.
        save_dir: The folder of checkpoints, or None.
        save_freq: The number of epochs between regular checkpoints.
        metric: The metric of the best model, or None for no best model.
        patience: The number of epochs without an improvement after which training stops, or None.
        callbacks: Functions of (trainer, epoch, metrics), and trackers.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        save_dir: str | Path | None,
        save_freq: int,
        metric: str | None,
        patience: int | None,
        callbacks: Iterable[EpochCallback | Track],
    ) -> None:
        check_number("save_freq", save_freq, least=1, of="epochs")
        if patience is not None:
            check_number("early_stopping_patience", patience, least=1, of="epochs")
        self.trainer = trainer
        self.core = trainer._core
        self.save_dir = None if save_dir is None else Path(save_dir)
        self.save_freq = save_freq
        self.metric = metric
        self.patience = patience
        self.trackers: list[Track] = []
        self.callbacks = [self._registered(callback) for callback in callbacks]
        self.rows: list[dict[str, float]] = []
        self.earlier: list[dict[str, float]] = []  # of the run that was loaded
        self._stopping: EarlyStopping | None = None
        mode = "auto" if metric is None else self.core.settings.best_model_mode
        self._watched = WatchedMetric(
            metric or "eval_loss", mode, "best_model_metric", "training.best_model_mode"
        )

    def _registered(self, callback: Any) -> Callable[..., None]:
        """The function of (epoch, metrics) that a callback is called by after each epoch."""
        tracker = as_tracker(callback)
        if tracker is not None:
            self.trackers.append(tracker)
            core = self.core
            return lambda epoch, metrics: tracker.log_epoch(core, core.progress.epoch, metrics)
        name = getattr(callback, "__name__", type(callback).__name__)
        advice = " Pass callbacks=[log], not callbacks=[log()], and objects, not classes."
        check_arguments(callback, ("trainer", "epoch", "metrics"), f"Callback {name}", advice)
        return named_hook(callback, f"callback {name}", self.trainer)

    @property
    def has_stopped(self) -> bool:
        """Whether early stopping had ended the run that was loaded."""
        stopping = self._stopping
        return stopping is not None and stopping.num_bad_epochs >= stopping.patience

    def begin(self, eval_dataloader: Any, loaded: Mapping[str, Any] | None) -> None:
        """Find out which values of the metric are better, or raise, and continue the run that was
        loaded."""
        has_plateau = any(schedule.watches for schedule in self.core.schedules.values())
        is_kept = self.save_dir is not None and self.metric is not None
        if self.patience is not None or is_kept or has_plateau:
            self._check_measured(eval_dataloader)
            settle_all([self._watched], self.core.run.metrics.directions)
            self.core._plateau_metric = self._watched.name
        self.core.watched = self.metric_in
        if self.save_dir is not None:
            is_own = self.trainer._overrides("_save_checkpoint")
            check_inside(self.save_dir, None if is_own else SAVED, "save_dir")
            if is_own:
                self.save_dir.mkdir(parents=True, exist_ok=True)  # `torch.save` does not make it
        if loaded is not None:
            with explained("The part 'simple' of the saved state cannot be loaded"):
                self._go_on(loaded)

    def _check_measured(self, eval_dataloader: Any) -> None:
        """Refuse a metric that no epoch will have, as far as that can be known before the first
        step: what an overridden method measures is only known when it has run."""
        name = self.metric or "eval_loss"
        overrides = self.trainer._overrides
        measured_by = ["train_epoch"]
        if name.startswith("train_"):
            measured_by += ["train_step", "_compute_loss"]
        elif name.startswith("eval_") and eval_dataloader is not None:
            measured_by.append("evaluate")
        if name in ("train_loss", "eval_loss") or any(map(overrides, measured_by)):
            return
        known = {"train_loss"}
        if eval_dataloader is not None and not overrides("evaluate"):
            with closing(self.core._open(eval_dataloader, None, shuffle=False)) as stream:
                known |= {f"eval_{found}" for found in measured_on(self.core.run, stream)}
        if name not in known:
            raise ConfigurationError(
                "unknown-best-metric",
                f"best_model_metric={name!r} is not measured in these epochs; "
                f"{nearest(name, known)} Metrics that `eval_step` or `evaluate` returns begin "
                "with eval_, and need `eval_dataloader=`.",
            )

    def _mode_of(self, name: str) -> Mode:
        """Which values are better: of the given metric, or of the training loss in its place."""
        return self._watched.mode if name == self._watched.name else "min"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for the rest of these epochs to be as if there had been no
        interruption."""
        stopping = self._stopping
        saved = None
        if stopping is not None:
            saved = stopping.state_dict() | {"metric": stopping.metric}
        best = {
            name: value
            for (path, name), value in self.trainer._best.items()
            if self.save_dir is not None and path == self.save_dir.absolute()
        }
        return {"rows": [*self.earlier, *self.rows], "stopping": saved, "best": best}

    def _go_on(self, state: Mapping[str, Any]) -> None:
        self.earlier = [dict(row) for row in state["rows"]]
        stopping = state["stopping"]
        if self.patience is not None and stopping is not None:
            name = stopping["metric"]
            self._stopping = EarlyStopping(name, self.patience, self._mode_of(name))
            self._stopping.load_state_dict(stopping)
        if self.save_dir is not None:
            for name, value in state["best"].items():
                self.trainer._best.setdefault((self.save_dir.absolute(), name), value)

    def catch_up(self) -> None:
        """Write the regular checkpoint of the last epoch that was loaded, if a kill came between
        the best model and it."""
        is_kept = self.save_dir is not None and (self.save_dir / "best_model").is_dir()
        if self.save_dir is None or not (is_kept and self.earlier) or self.core.progress.in_epoch:
            return
        epoch = len(self.earlier) - 1
        if not self._regular(self.save_dir, epoch).exists():
            self._save(self.save_dir, epoch, self.earlier[-1])

    def save_now(self) -> str | None:
        """Save inside an epoch, since a signal requested it; return the path, or None without
        `save_dir`."""
        if self.save_dir is None:
            return None
        path = str(self.save_dir / "checkpoint_latest")
        self.trainer._save_checkpoint(path, len(self.earlier + self.rows) - 1)
        return path

    def __call__(self, epoch: int, metrics: dict[str, float]) -> None:
        """End an epoch: perhaps request a stop, save, and call the callbacks in any case."""
        epoch += len(self.earlier)
        self.rows.append(dict(metrics))
        if self.patience is not None:
            name = self.metric_in(metrics)
            if self._stopping is None:
                self._stopping = EarlyStopping(name, self.patience, self._mode_of(name))
            self._stopping.on_epoch_end(self.core, metrics)
        if self.save_dir is not None:
            self._save(self.save_dir, epoch, metrics)
        for callback in self.callbacks:
            callback(epoch, metrics)

    def _save(self, save_dir: Path, epoch: int, metrics: dict[str, float]) -> None:
        """Write the best model, if this is one, and the regular checkpoint, if it is due."""
        value = None
        if self.metric is not None:
            name = self.metric_in(metrics)
            value = metric_of(metrics, name, "best_model_metric")
            key = (save_dir.absolute(), name)
            # in earlier calls, too
            best = self.trainer._best.get(key)
            if best is None or is_better(value, best, self._mode_of(name)):
                self.trainer._best[key] = value
                self.core.run.note("best", f"{name} {value:.6g}", metric=name, value=value)
                self.trainer._save_checkpoint(str(save_dir / "best_model"), epoch, value)
        if (epoch + 1) % self.save_freq == 0:
            self.trainer._save_checkpoint(str(self._regular(save_dir, epoch)), epoch, value)

    def _regular(self, save_dir: Path, epoch: int) -> Path:
        return save_dir / f"checkpoint_epoch_{epoch + 1}"

    def metric_in(self, metrics: dict[str, float]) -> str:
        """The metric to compare: the given one, or the training loss where the default was not
        evaluated."""
        has_eval = any(name.startswith("eval_") for name in metrics)
        if self.metric in (None, "eval_loss") and not has_eval:
            return "train_loss"
        return self.metric or "eval_loss"


def as_lists(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A list for each metric with an entry for each epoch; NaN where an epoch did not measure
    it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, float("nan")) for row in rows] for name in names}
