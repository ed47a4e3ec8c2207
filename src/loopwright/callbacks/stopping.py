"""Ending a run: when a metric has stopped improving, or at a point that was fixed before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..data.stream import LimitedStream
from ..errors import ConfigurationError, check_number, public
from ..metrics.best import BestSoFar
from .interval import Watching

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..data.open import Stream


class EarlyStopping(Watching):
    """Stops training when a metric has not improved for `patience` values in a row, by default one
    every epoch.

    NaN is never an improvement. After updates or samples, the metric has to be one that a callback
    logs with the same interval, such as `OfflineLoss`.

    Args:
        metric: The metric to watch.
        patience: Stop after this number of values without an improvement.
        mode: "min" or "max" for the values that are better. "auto" decides by the losses that steps
            return and by the metric's name; if the name does not tell, that is an error before the
            first step.
        min_delta: An improvement is better than the best value so far by more than this.
        every_n_epochs: Look at the metric every n epochs; one of the three intervals may be given.
        every_n_updates: Look at the metric every n updates.
        every_n_samples: Look at the metric every n samples, after the update that reaches them.

    Example:
        >>> from loopwright.callbacks import EarlyStopping
        >>> EarlyStopping("eval_accuracy", patience=5).mode
        'max'
    """

    @public
    def __init__(
        self,
        metric: str = "eval_loss",
        patience: int = 3,
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        min_delta: float = 0.0,
        every_n_epochs: int | None = None,  # by name, for the message about an unknown argument
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        check_number("EarlyStopping(patience", patience, least=1, of="values")
        super().__init__(
            metric,
            mode,
            min_delta=min_delta,
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        self.patience = patience
        self.has_stopped = False

    @property
    def num_bad_epochs(self) -> int:
        """How many values since the best one have not improved on it."""
        return self.watched.so_far.num_bad

    def on_train_start(self, trainer: Trainer) -> None:
        """Start counting again in the call after the one that was stopped, unless it is resumed."""
        super().on_train_start(trainer)
        if self.has_stopped and trainer.stop_reason is None:
            self.has_stopped = False
            self.watched.so_far = replace(self.watched.so_far, num_bad=0)

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        self.watched.add(value, self.interval.now(trainer.progress))
        if self.num_bad_epochs >= self.patience:
            self.has_stopped = True
            trainer.stop(self.watched.standstill(value, self.interval.unit, self.interval.n))

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_at": self.best_at,
            "num_bad_epochs": self.num_bad_epochs,
            "has_stopped": self.has_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watched.so_far = BestSoFar(state["best"], state["best_at"], state["num_bad_epochs"])
        self.has_stopped = state["has_stopped"]


class FixedEarlyStopping(Callback):
    """Stops at an epoch, update or sample of the run, with learning-rate schedules that are made
    for a longer run.

    A limit of `train` shortens the schedules; this does not. Exactly one of the arguments is given.

    Args:
        stop_at_epoch: Stop when this number of epochs is complete.
        stop_at_update: Stop after this update.
        stop_at_sample: Stop after the update that reaches this sample.

    Example:
        >>> from loopwright.callbacks import FixedEarlyStopping
        >>> FixedEarlyStopping(stop_at_update=1000).n
        1000
    """

    def __init__(
        self,
        *,
        stop_at_epoch: int | None = None,
        stop_at_update: int | None = None,
        stop_at_sample: int | None = None,
    ) -> None:
        points = {"epoch": stop_at_epoch, "update": stop_at_update, "sample": stop_at_sample}
        given = {unit: n for unit, n in points.items() if n is not None}
        if len(given) != 1:
            named = ", ".join(f"stop_at_{unit}={n}" for unit, n in given.items())
            raise ConfigurationError(
                "one-point-to-stop",
                f"FixedEarlyStopping({named}): pass exactly one of stop_at_epoch, stop_at_update "
                "and stop_at_sample.",
            )
        self.unit, self.n = next(iter(given.items()))
        check_number(f"FixedEarlyStopping(stop_at_{self.unit}", self.n, least=1)
        self.ignored_events = ("on_update_end",) if self.unit == "epoch" else ("on_epoch_end",)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.on_update_end(trainer)

    def on_update_end(self, trainer: Trainer) -> None:
        if getattr(trainer.progress, self.unit) >= self.n:
            trainer.stop(f"reached the limit set by FixedEarlyStopping: {self.unit} {self.n}")

    on_train_start = on_update_end


ENVIRONMENT = "LOOPWRIGHT_LIMIT_BATCHES"


class LimitBatches(Callback):
    """Uses the first batches of every epoch only, to try out a program quickly.

    Without arguments, both limits come from the environment variable LOOPWRIGHT_LIMIT_BATCHES;
    where it is not set, nothing is limited.

    Args:
        train: The number of batches of a training epoch.
        eval: The number of batches of an evaluation, `evaluate` and `predict` included.

    Example:
        >>> from loopwright.callbacks import LimitBatches
        >>> LimitBatches(train=10).train
        10
    """

    # our word for it
    def __init__(self, train: int | None = None, eval: int | None = None) -> None:  # noqa: A002
        given = os.environ.get(ENVIRONMENT, "").strip()
        if train is None and eval is None and given:
            train = int(given)
            eval = int(given)  # noqa: A001
        for name, value in (("train", train), ("eval", eval)):
            if value is not None:
                check_number(f"LimitBatches({name}", value, least=1, of="batches")
        self.train = train
        self.eval = eval

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        limit = self.train if is_training else self.eval
        return stream if limit is None else LimitedStream(stream, limit)
