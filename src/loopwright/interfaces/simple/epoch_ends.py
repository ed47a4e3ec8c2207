"""The ends of the simple interface's epochs: the best model, regular checkpoints, early stopping,
callbacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...callback import named_hook
from ...callbacks.interval import metric_of
from ...callbacks.stopping import EarlyStopping
from ...checkpoint.manifest import check_inside
from ...errors import ConfigurationError, check_arguments, check_number
from ...metrics.best import Mode, WatchedMetric, is_better, settle_all
from ...text import nearest
from .._shared import as_tracker

if TYPE_CHECKING:
    from ...trackers import Track
    from .core import SimpleCore
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
            check_number(
                "early_stopping_patience",
                patience,
                least=1,
                of="epochs",
                otherwise="None for no early stopping",
            )
        self.trainer = trainer
        self.core = trainer._core
        self.save_dir = None if save_dir is None else Path(save_dir)
        self.save_freq = save_freq
        self.metric = metric
        self.patience = patience
        self.trackers: list[Track] = []
        self.callbacks = [self._registered(callback) for callback in callbacks]
        self.rows: list[dict[str, float]] = []
        self._earlier: list[dict[str, float]] = []  # of the run that was loaded
        self._stopping: EarlyStopping | None = None
        mode = "auto" if metric is None else self.core.settings.best_model_mode
        self._watched = WatchedMetric(
            metric or "eval_loss", mode, "best_model_metric", "training.best_model_mode"
        )
        if save_dir is not None:
            check_inside(
                save_dir, None if trainer._overrides("_save_checkpoint") else SAVED, "save_dir"
            )

    def _registered(self, callback: Any) -> Callable[..., None]:
        """The function of (epoch, metrics) that a callback is called by after each epoch."""
        tracker = as_tracker(callback)
        if tracker is not None:
            self.trackers.append(tracker)
            core = self.core
            return lambda epoch, metrics: tracker.log_epoch(core, core.progress.epoch, metrics)
        name = getattr(callback, "__name__", type(callback).__name__)
        if not callable(callback) or isinstance(callback, type):
            raise ConfigurationError(
                "epoch-callback",
                f"callbacks has {callback!r}, which is neither a function of (trainer, epoch, "
                "metrics) nor a tracker: pass the functions themselves, as in callbacks=[log], not "
                "callbacks=[log()], and objects, not classes.",
            )
        check_arguments(callback, ("trainer", "epoch", "metrics"), f"Callback {name}")
        return named_hook(callback, f"callback {name}", self.trainer)

    @property
    def watches_metric(self) -> bool:
        is_kept = self.save_dir is not None and self.metric is not None
        has_plateau = any(schedule.watches for schedule in self.core.schedules.values())
        return self.patience is not None or is_kept or has_plateau

    @property
    def has_stopped(self) -> bool:
        """Whether early stopping had ended the run that was loaded."""
        stopping = self._stopping
        return stopping is not None and stopping.num_bad_epochs >= stopping.patience

    @property
    def num_earlier(self) -> int:
        """Epochs that the run that was loaded had behind it."""
        return len(self._earlier)

    def begin(self, eval_dataloader: Any, loaded: Mapping[str, Any] | None) -> None:
        """Find out which values of the metric are better, or raise, and continue the run that was
        loaded."""
        if self.watches_metric:
            self._check_measured(eval_dataloader)
            settle_all([self._watched], self.core.run.metrics.directions)
            check_plateau(self.core, self._watched.name, self._watched.mode)
        self.core.watched = self._metric_in
        if self.save_dir is not None and self.trainer._overrides("_save_checkpoint"):
            self.save_dir.mkdir(parents=True, exist_ok=True)  # `torch.save` does not make it
        if loaded is not None:
            self._go_on(loaded)

    def _check_measured(self, eval_dataloader: Any) -> None:
        """Refuse a metric that no epoch will have, as far as that can be known before the first
        step.

        What an overridden `evaluate`, `train_step` or `train_epoch` measures is only known when it
        has run.
        """
        name = self.metric
        overrides = self.trainer._overrides
        if name in (None, "train_loss", "eval_loss") or overrides("train_epoch"):
            return
        assert name is not None
        is_eval = name.startswith("eval_")
        if name.startswith("train_") and (overrides("train_step") or overrides("_compute_loss")):
            return
        if is_eval and eval_dataloader is not None and overrides("evaluate"):
            return
        known = {"train_loss"}
        hint = ""
        if eval_dataloader is None:
            hint = " Pass `eval_dataloader=` to evaluate." if is_eval else ""
        elif overrides("evaluate"):
            hint = f" The metrics that `evaluate` returns begin with eval_, as 'eval_{name}'."
        else:
            known |= {f"eval_{found}" for found in self.core.names_of_one_batch(eval_dataloader)}
        if name not in known:
            raise ConfigurationError(
                "unknown-best-metric",
                f"best_model_metric={name!r} is not measured in these epochs; "
                f"{nearest(name, known)}{hint} To use your own metric, return it from `eval_step`.",
            )

    def _mode_of(self, name: str) -> Mode:
        """Which values are better: of the given metric, or of the training loss in its place."""
        return self._watched.mode if name == self._watched.name else "min"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for the rest of these epochs to be as if there had been no
        interruption."""
        stopping = self._stopping
        return {
            "rows": [*self._earlier, *self.rows],
            "stopping": None
            if stopping is None
            else stopping.state_dict() | {"metric": stopping.metric},
            "best": {
                name: value
                for (path, name), value in self.trainer._best.items()
                if self.save_dir is not None and path == self.save_dir.absolute()
            },
        }

    def _go_on(self, state: Mapping[str, Any]) -> None:
        self._earlier = [dict(row) for row in state["rows"]]
        stopping = state["stopping"]
        if self.patience is not None and stopping is not None:
            self._stopping = EarlyStopping(
                stopping["metric"], self.patience, self._mode_of(stopping["metric"])
            )
            self._stopping.load_state_dict(stopping)
        if self.save_dir is not None:
            for name, value in state["best"].items():
                self.trainer._best.setdefault((self.save_dir.absolute(), name), value)

    def catch_up(self) -> None:
        """Write the regular checkpoint that is missing if the process was killed between the best
        model and it."""
        epoch = self.num_earlier - 1
        save_dir = self.save_dir
        if save_dir is None or epoch < 0 or (epoch + 1) % self.save_freq:
            return
        is_missing = not self._regular(save_dir, epoch).exists()
        if is_missing and (save_dir / "best_model").is_dir() and not self.core.progress.in_epoch:
            self._save(save_dir, epoch, self._earlier[epoch])

    def save_now(self) -> str | None:
        """Save inside an epoch, since a signal requested it; return the path, or None without
        `save_dir`."""
        if self.save_dir is None:
            return None
        path = str(self.save_dir / "checkpoint_latest")
        self.trainer._save_checkpoint(path, len(self._earlier + self.rows) - 1)
        return path

    def __call__(self, epoch: int, metrics: dict[str, float]) -> None:
        """End an epoch: perhaps request a stop, save, and call the callbacks in any case."""
        epoch += self.num_earlier
        self.rows.append(dict(metrics))
        if self.patience is not None:
            name = self._metric_in(metrics)
            if self._stopping is None:
                self._stopping = EarlyStopping(name, self.patience, self._mode_of(name))
            self._stopping.on_epoch_end(self.core, metrics)
        if self.save_dir is not None:
            self._save(self.save_dir, epoch, metrics)
        for callback in self.callbacks:
            callback(epoch, metrics)

    def _save(self, save_dir: Path, epoch: int, metrics: dict[str, float]) -> None:
        name = self._metric_in(metrics)
        value = None if self.metric is None else metric_of(metrics, name, "best_model_metric")
        if value is not None and self._is_best(save_dir, name, value):
            self.core.run.note("best", f"{name} {value:.6g}", metric=name, value=value)
            self.trainer._save_checkpoint(str(save_dir / "best_model"), epoch, value)
        if (epoch + 1) % self.save_freq == 0:
            self.trainer._save_checkpoint(str(self._regular(save_dir, epoch)), epoch, value)

    def _is_best(self, save_dir: Path, name: str, value: float) -> bool:
        """Whether a value is better than all that this trainer kept there by this metric, in
        earlier calls too."""
        key = (save_dir.absolute(), name)
        best = self.trainer._best.get(key)
        is_best = best is None or is_better(value, best, self._mode_of(name))
        if is_best:
            self.trainer._best[key] = value
        return is_best

    def _metric_in(self, metrics: dict[str, float]) -> str:
        """The metric to compare: the given one, or the training loss where the default was not
        evaluated."""
        has_eval = any(name.startswith("eval_") for name in metrics)
        if self.metric in (None, "eval_loss") and not has_eval:
            return "train_loss"
        return self.metric or "eval_loss"

    @staticmethod
    def _regular(save_dir: Path, epoch: int) -> Path:
        return save_dir / f"checkpoint_epoch_{epoch + 1}"


def as_lists(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A list for each metric with an entry for each epoch; NaN where an epoch did not measure
    it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, float("nan")) for row in rows] for name in names}


def check_plateau(core: SimpleCore, metric: str, mode: Mode, where: str = "") -> None:
    """Refuse ReduceLROnPlateau where it would take an improvement of what it watches for its
    opposite."""
    for schedule in core.schedules.values():
        if schedule.watches and schedule.metric is None and schedule.scheduler.mode != mode:
            better = "larger" if mode == "max" else "smaller"
            raise ConfigurationError(
                "plateau-mode",
                f'ReduceLROnPlateau(mode="{schedule.scheduler.mode}") watches {metric!r}{where}, '
                f'for which {better} values are better: create it with mode="{mode}", or let it '
                "watch another metric with train(..., best_model_metric=...).",
            )
