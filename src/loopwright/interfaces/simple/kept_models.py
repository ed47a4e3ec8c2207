"""The ends of the simple interface's epochs: the best model, regular checkpoints, early stopping,
callbacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...callback import named_hook
from ...callbacks.interval import metric_of
from ...callbacks.stopping import EarlyStopping
from ...checkpoint.manifest import check_inside
from ...errors import CheckpointError, ConfigurationError, check_arguments
from ...metrics.best import Mode, WatchedMetric, is_better, settle_all
from .._shared import as_tracker

if TYPE_CHECKING:
    from ...checkpoint.weights import Parts
    from ...trackers import Track
    from .engine import Engine
    from .trainer import Trainer

SAVED = re.compile(r"best_model|checkpoint_latest|checkpoint_epoch_\d+")
EpochCallback = Callable[["Trainer", int, dict[str, float]], Any]


class EpochEnds:
    """The ends of the epochs of one `train` call."""

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
        if not isinstance(save_freq, int) or save_freq < 1:
            raise ConfigurationError(f"save_freq={save_freq!r}: use a number of epochs, 1 or more.")
        self.trainer = trainer
        self.save_dir = None if save_dir is None else Path(save_dir)
        self.save_freq = save_freq
        self.metric = metric
        self.patience = patience
        self.trackers: list[Track] = []
        self.callbacks = [self._registered(callback) for callback in callbacks]
        self.rows: list[dict[str, float]] = []
        self._earlier: list[dict[str, float]] = []
        self._stopping: EarlyStopping | None = None
        mode = "auto" if metric is None else trainer._engine.settings.best_model_mode
        self._watched = WatchedMetric(
            metric or "eval_loss", mode, "best_model_metric", "training.best_model_mode"
        )
        if patience is not None and (type(patience) is not int or patience < 1):
            raise ConfigurationError(
                f"early_stopping_patience={patience!r}: use the number of epochs to wait for an "
                "improvement, 1 or more, or None for no early stopping."
            )
        if save_dir is not None:
            check_inside(
                save_dir, None if trainer._overrides("_save_checkpoint") else SAVED, "save_dir"
            )

    def _registered(self, callback: EpochCallback | Track) -> Callable[..., None]:
        """The function of (epoch, metrics) that a callback is called by after each epoch."""
        tracker = as_tracker(callback)
        if tracker is None:
            return _checked(cast("EpochCallback", callback), self.trainer)
        self.trackers.append(tracker)
        engine = self.trainer._engine
        return lambda epoch, metrics: tracker.log_epoch(engine, engine.progress.epoch, metrics)

    @property
    def watches_metric(self) -> bool:
        is_kept = self.save_dir is not None and self.metric is not None
        return self.patience is not None or is_kept or self._has_plateau

    @property
    def _has_plateau(self) -> bool:
        return any(schedule.watches for schedule in self.trainer._engine.schedules.values())

    @property
    def has_stopped(self) -> bool:
        """Whether early stopping had ended the run that was loaded."""
        stopping = self._stopping
        return stopping is not None and stopping.num_bad_epochs >= stopping.patience

    @property
    def num_earlier(self) -> int:
        """Epochs that the run that was loaded had behind it."""
        return len(self._earlier)

    def begin(self, loaded: Mapping[str, Any] | None) -> None:
        """Find out which values of the metric are better, or raise, and continue the run that was
        loaded."""
        if self.watches_metric:
            settle_all([self._watched], self.trainer._engine.run.directions)
            check_plateau(self.trainer._engine, self._watched.name, self._watched.mode)
        self.trainer._engine.watched = self._metric_in
        if self.save_dir is not None and self.trainer._overrides("_save_checkpoint"):
            self.save_dir.mkdir(parents=True, exist_ok=True)  # `torch.save` does not make it
        if loaded is not None:
            self._go_on(loaded)

    def _mode_of(self, name: str) -> Mode:
        """Which values are better: of the given metric, or of the training loss in its place."""
        return self._watched.mode if name == self._watched.name else "min"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for the rest of these epochs to be as if there had been no
        interruption."""
        rows = [*self._earlier, *self.rows]
        stopping = (
            None
            if self._stopping is None
            else self._stopping.state_dict() | {"metric": self._stopping.metric}
        )
        best = (
            {}
            if self.save_dir is None
            else {
                name: value
                for (path, name), value in self.trainer._best.items()
                if path == self.save_dir.absolute()
            }
        )
        return {"rows": rows, "stopping": stopping, "best": best}

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
        if (
            save_dir is None
            or epoch < 0
            or (epoch + 1) % self.save_freq
            or self.trainer._engine.progress.in_epoch
        ):
            return
        if (save_dir / "best_model").is_dir() and not _regular(save_dir, epoch).exists():
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
            self._watch(metrics, self.patience)
        if self.save_dir is not None:
            self._save(self.save_dir, epoch, metrics)
        for callback in self.callbacks:
            callback(epoch, metrics)

    def history(self) -> dict[str, list[float]]:
        """A list for each metric with an entry for each epoch; NaN where an epoch did not measure
        it."""
        return as_lists(self.rows)

    def _save(self, save_dir: Path, epoch: int, metrics: dict[str, float]) -> None:
        name = self._metric_in(metrics)
        value = None if self.metric is None else metric_of(metrics, name, "best_model_metric")
        if value is not None and self._is_best(save_dir, name, value):
            self.trainer._engine.run.note("best", f"{name} {value:.6g}", metric=name, value=value)
            self.trainer._save_checkpoint(str(save_dir / "best_model"), epoch, value)
        if (epoch + 1) % self.save_freq == 0:
            self.trainer._save_checkpoint(str(_regular(save_dir, epoch)), epoch, value)

    def _is_best(self, save_dir: Path, name: str, value: float) -> bool:
        """Whether a value is better than all that this trainer kept there by this metric, in
        earlier calls too."""
        key = (save_dir.absolute(), name)
        best = self.trainer._best.get(key)
        is_best = best is None or is_better(value, best, self._mode_of(name))
        if is_best:
            self.trainer._best[key] = value
        return is_best

    def _watch(self, metrics: dict[str, float], patience: int) -> None:
        if self._stopping is None:
            name = self._metric_in(metrics)
            self._stopping = EarlyStopping(name, patience, self._mode_of(name))
        self._stopping.on_epoch_end(self.trainer._engine, metrics)

    def _metric_in(self, metrics: dict[str, float]) -> str:
        """The metric to compare: the given one, or the training loss where the default was not
        evaluated."""
        if (
            self.metric in (None, "eval_loss")
            and "eval_loss" not in metrics
            and not self._has_eval(metrics)
        ):
            return "train_loss"
        return self.metric or "eval_loss"

    @staticmethod
    def _has_eval(metrics: dict[str, float]) -> bool:
        return any(name.startswith("eval_") for name in metrics)


def _regular(save_dir: Path, epoch: int) -> Path:
    return save_dir / f"checkpoint_epoch_{epoch + 1}"


def as_lists(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A list for each metric with an entry for each row; NaN where a row does not have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, float("nan")) for row in rows] for name in names}


def read_run(parts: Parts, engine: Engine | None) -> dict[str, Any]:
    """What a checkpoint notes of the epochs so far, once it is known that `engine`, if given, can
    go on from it."""
    from ...training.restore import compare_run
    from ...training.state_mismatch import differing_kinds, listed, wrong_fields

    noted = parts.rest.get("simple", {}) if parts.path.is_dir() else {}
    problems = list(differing_kinds({"run": {"rows": [{}], "best": {}}}, noted, "simple"))
    run = {} if problems else noted.get("run") or {}
    if run:
        problems += wrong_fields("simple: run", run, ("rows", "stopping", "best"))
    if engine is not None:
        problems += compare_run(engine.run, parts.rest)
    if problems:
        raise CheckpointError(
            f"{parts.path} does not match this trainer; nothing was loaded:{listed(problems)}"
        )
    return dict(run)


def check_metric(trainer: Trainer, name: str | None, eval_dataloader: Any) -> None:
    """Refuse a metric that no epoch will have, as far as that can be known before the first step.

    What an overridden `evaluate`, `train_step` or `train_epoch` measures is only known when it has
    run.
    """
    if name in (None, "train_loss", "eval_loss") or trainer._overrides("train_epoch"):
        return
    assert name is not None
    if name.startswith("train_") and (
        trainer._overrides("train_step") or trainer._overrides("_compute_loss")
    ):
        return
    known = {"train_loss"}
    hint = ""
    if eval_dataloader is None:
        hint = " Pass `eval_dataloader=` to evaluate." if name.startswith("eval_") else ""
    elif not trainer._overrides("evaluate"):
        known |= {f"eval_{found}" for found in trainer._engine.names_of_one_batch(eval_dataloader)}
    elif name.startswith("eval_"):
        return
    else:
        hint = f" The metrics that `evaluate` returns begin with eval_: did you mean 'eval_{name}'?"
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        own = " To use your own metric, return it from `eval_step` and pass `eval_dataloader=`."
        hint = hint or (f" Did you mean {near[0]!r}?" if near else own)
        raise ConfigurationError(
            f"best_model_metric={name!r} is not measured in these epochs; available: "
            f"{', '.join(sorted(known))}.{hint}"
        )


def check_plateau(engine: Engine, metric: str, mode: Mode, where: str = "") -> None:
    """Refuse ReduceLROnPlateau where it would take an improvement of what it watches for its
    opposite."""
    for schedule in engine.schedules.values():
        if schedule.watches and schedule.metric is None and schedule.scheduler.mode != mode:
            better = "larger" if mode == "max" else "smaller"
            raise ConfigurationError(
                f'ReduceLROnPlateau(mode="{schedule.scheduler.mode}") watches {metric!r}{where}, for which {better} '
                f'values are better: create it with mode="{mode}", or let it watch another metric with train(..., '
                "best_model_metric=...)."
            )


def _checked(callback: EpochCallback, trainer: Trainer) -> Callable[..., None]:
    """The callback with its trainer bound; an exception in it says which one it came from."""
    name = getattr(callback, "__name__", type(callback).__name__)
    if not callable(callback):
        raise ConfigurationError(
            f"callbacks: {callback!r} is neither a function of (trainer, epoch, metrics) nor a "
            "tracker: pass the functions themselves, as in callbacks=[log], not "
            "callbacks=[log()]."
        )
    if isinstance(callback, type):
        raise ConfigurationError(
            f"callbacks has the class {name} itself: pass an object of it, `{name}()`."
        )
    check_arguments(callback, ("trainer", "epoch", "metrics"), f"Callback {name}")
    return named_hook(callback, f"callback {name}", trainer)
