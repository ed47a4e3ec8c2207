"""Ending a run whose metric has stopped improving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigurationError
from ..hooks import Callback
from .watching import metric_of, resolve_mode

if TYPE_CHECKING:
    from ..trainer import Trainer


class EarlyStopping(Callback):
    """Stops training when a metric has not improved for `patience` epochs in a row.

    An improvement is more than `min_delta` better than the best so far; NaN never is one. `mode` "auto" minimises a
    metric whose name ends in loss or error and maximises any other.
    """

    def __init__(
        self,
        metric: str = "eval_loss",
        patience: int = 3,
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        min_delta: float = 0.0,
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ConfigurationError(f"EarlyStopping(patience={patience!r}): use a number of epochs, 1 or more.")
        if not min_delta >= 0:
            raise ConfigurationError(f"EarlyStopping(min_delta={min_delta!r}): use 0 or more.")
        self.metric = metric
        self.patience = patience
        self.mode = resolve_mode(metric, mode)
        self.min_delta = min_delta
        self.best: float | None = None
        self.best_epoch = 0
        self.num_bad_epochs = 0
        self.has_stopped = False

    def required_metrics(self) -> set[str]:
        return {self.metric}

    def on_train_start(self, trainer: Trainer) -> None:
        """A new call after the one that was stopped has its patience back; a resumed call goes on with what is left."""
        if self.has_stopped and trainer.stop_reason is None:
            self.has_stopped, self.num_bad_epochs = False, 0

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        value = metric_of(metrics, self.metric, type(self).__name__)
        if self.is_improvement(value):
            self.best, self.best_epoch, self.num_bad_epochs = value, trainer.progress.epoch, 0
            return
        self.num_bad_epochs += 1
        if self.num_bad_epochs >= self.patience:
            self.has_stopped = True
            trainer.stop(self._reason(value))

    def is_improvement(self, value: float) -> bool:
        if value != value:
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def _reason(self, value: float) -> str:
        epochs = "1 epoch" if self.num_bad_epochs == 1 else f"{self.num_bad_epochs} epochs"
        best = "never a number" if self.best is None else f"best {self.best:.6g} in epoch {self.best_epoch}"
        return f"{self.metric} has not improved for {epochs} (now {value:.6g}, {best})"

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "num_bad_epochs": self.num_bad_epochs,
            "has_stopped": self.has_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.num_bad_epochs, self.has_stopped = state["num_bad_epochs"], state["has_stopped"]
