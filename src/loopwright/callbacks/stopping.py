"""Ending a run: when a metric has stopped improving, or at a point that was fixed before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from ..callback import Callback
from ..data.stream import LimitedStream
from ..errors import ConfigurationError, public
from ..metrics.best import BestSoFar
from ..metrics.progress import seconds_of
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
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ConfigurationError(
                f"EarlyStopping(patience={patience!r}): use a number of epochs, 1 or more."
            )
        if not min_delta >= 0:
            raise ConfigurationError(f"EarlyStopping(min_delta={min_delta!r}): use 0 or more.")
        super().__init__(
            metric,
            mode,
            every_n_epochs=every_n_epochs,
            every_n_updates=every_n_updates,
            every_n_samples=every_n_samples,
        )
        self.patience = patience
        self.min_delta = min_delta
        self.has_stopped = False
        self._so_far = BestSoFar()

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self._so_far.value

    @property
    def best_at(self) -> int:
        """The epoch, update or sample of the best value."""
        return self._so_far.at

    @property
    def num_bad_epochs(self) -> int:
        """How many values since the best one have not improved on it."""
        return self._so_far.num_bad

    def on_train_start(self, trainer: Trainer) -> None:
        """Start counting again in the call after the one that was stopped; a resumed call keeps its
        count."""
        super().on_train_start(trainer)
        if self.has_stopped and trainer.stop_reason is None:
            self.has_stopped, self._so_far = False, replace(self._so_far, num_bad=0)

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        self._so_far = self._so_far.after(
            value, self.interval.now(trainer.progress), self.mode, self.min_delta
        )
        if self.num_bad_epochs >= self.patience:
            self.has_stopped = True
            trainer.stop(self._reason(value))

    def _reason(self, value: float) -> str:
        unit = self.interval.unit
        length = self.num_bad_epochs * self.interval.n
        time = f"1 {unit}" if length == 1 else f"{length} {unit}s"
        best = (
            "never a number"
            if self.best is None
            else f"best {self.best:.6g} in {unit} {self.best_at}"
        )
        return f"{self.metric} has not improved for {time} (now {value:.6g}, {best})"

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_at": self.best_at,
            "num_bad_epochs": self.num_bad_epochs,
            "has_stopped": self.has_stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._so_far = BestSoFar(state["best"], state["best_at"], state["num_bad_epochs"])
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
                f"FixedEarlyStopping({named}): pass exactly one of stop_at_epoch, stop_at_update "
                "and stop_at_sample."
            )
        self.unit, self.n = next(iter(given.items()))
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise ConfigurationError(
                f"FixedEarlyStopping(stop_at_{self.unit}={self.n!r}): use a number, 1 or more."
            )
        self.ignored_events = ("on_update_end",) if self.unit == "epoch" else ("on_epoch_end",)

    def on_train_start(self, trainer: Trainer) -> None:
        self._check(trainer)

    def on_update_end(self, trainer: Trainer) -> None:
        self._check(trainer)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if getattr(trainer.progress, self.unit) >= self.n:
            trainer.stop(f"reached the limit set by FixedEarlyStopping: {self.unit} {self.n}")


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
        if train is None and eval is None:
            train = eval = _from_environment()  # noqa: A001
        for name, value in (("train", train), ("eval", eval)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(
                    f"LimitBatches({name}={value!r}): use a number of batches, 1 or more."
                )
        self.train = train
        self.eval = eval

    def adapt_stream(self, stream: Stream, *, is_training: bool) -> Stream:
        limit = self.train if is_training else self.eval
        return stream if limit is None else LimitedStream(stream, limit)


def _from_environment() -> int | None:
    given = os.environ.get(ENVIRONMENT, "").strip()
    if not given:
        return None
    if not given.isdecimal() or int(given) < 1:
        raise ConfigurationError(
            f"{ENVIRONMENT}={given!r}: set it to a number of batches, 1 or more, or unset it."
        )
    return int(given)


class TimeLimit(Callback):
    """Stops when the run has trained for a given time.

    The time of evaluations does not count; the time of earlier, interrupted parts of the run does.
    `train(max_time=)` limits a single call instead.

    Args:
        limit: A number of seconds, a text such as "1h30m", or a `timedelta`.

    Example:
        >>> from loopwright.callbacks import TimeLimit
        >>> TimeLimit("1h30m").seconds
        5400.0
    """

    def __init__(self, limit: float | str | timedelta) -> None:
        seconds = seconds_of(limit, "limit") if isinstance(limit, (str, timedelta)) else limit
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise ConfigurationError(
                f"TimeLimit({limit!r}): use a number of seconds above 0, a string such as "
                "'1h30m', or a timedelta."
            )
        self.seconds = float(seconds)

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.progress.seconds >= self.seconds:
            trainer.stop(f"the time limit of {timedelta(seconds=self.seconds)} was reached")
