"""Intervals of n epochs, updates or samples, and the base classes of callbacks that act at
intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from ..callback import Callback
from ..errors import ConfigurationError, check_number
from ..metrics.best import Mode, WatchedMetric

if TYPE_CHECKING:
    from ..callback import Trainer
    from ..metrics.progress import Progress


def metric_of(metrics: Mapping[str, float], name: str, watcher: str) -> float:
    """The value of the metric that a callback watches, or an error that names the metrics there
    are."""
    if name not in metrics:
        raise ConfigurationError(
            "metric-not-measured",
            f"{watcher} watches {name!r}, but this epoch measured only {', '.join(metrics)}.",
        )
    return metrics[name]


def recall_mode(trainer: Trainer, watched: WatchedMetric) -> None:
    """Settle a metric of a finished run by what the run noted when it was trained."""
    if trainer.run.files.directory is not None and trainer.run.files.directory.has_run:
        from ..run.reading import Run

        trainer.run.metrics.directions.given |= Run(trainer.run.files.directory.path).metric_modes
    watched.settle(trainer.run.metrics.directions)


Unit = Literal["epoch", "update", "sample"]


class Every(TypedDict, total=False):
    """The arguments of a callback that acts at intervals; at most one of them is given."""

    every_n_epochs: int | None
    every_n_updates: int | None
    every_n_samples: int | None


class Interval:
    """Every n epochs, updates or samples; every epoch by default.

    An interval in samples is due at the first update at or past each multiple of n. It has no state
    to save, since a run is resumed between two updates.

    Args:
        owner: The name of the callback, for messages.
        every_n_epochs: Every n epochs; at most one of the three is given.
        every_n_updates: Every n updates.
        every_n_samples: Every n samples.

    >>> from loopwright import Progress
    >>> from loopwright.callbacks import Interval
    >>> interval = Interval("MyCallback", every_n_updates=100)
    >>> interval.is_due_after_update(Progress(update=200))
    True
    """

    def __init__(
        self,
        owner: str,
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        units: dict[Unit, int | None] = {
            "epoch": every_n_epochs,
            "update": every_n_updates,
            "sample": every_n_samples,
        }
        given = {unit: n for unit, n in units.items() if n is not None}
        if len(given) > 1:
            named = ", ".join(f"every_n_{unit}s={n}" for unit, n in given.items())
            raise ConfigurationError("two-intervals", f"{owner}({named}): use only one of them.")
        for unit, n in given.items():
            check_number(f"{owner}(every_n_{unit}s", n, least=1)
        self.unit: Unit = next(iter(given)) if given else "epoch"
        self.n = given.get(self.unit, 1)
        self._seen = 0

    def begin(self, progress: Progress) -> None:
        """Count from this progress on, when training starts or resumes."""
        self._seen = progress.sample

    def is_due_after_update(self, progress: Progress) -> bool:
        """Whether the interval is due after an update; called once for each update."""
        if self.unit == "update":
            return progress.update % self.n == 0
        seen = self._seen
        self._seen = progress.sample
        return self.unit == "sample" and progress.sample // self.n > seen // self.n

    def is_due_after_epoch(self, num_epochs: int) -> bool:
        """Whether the interval is due when `num_epochs` epochs are complete."""
        return self.unit == "epoch" and num_epochs % self.n == 0

    def now(self, progress: Progress) -> int:
        """The current epoch, update or sample, whichever the interval counts."""
        return int(getattr(progress, self.unit))


class AtIntervals(Callback):
    """Base class of callbacks that act every n epochs, updates or samples.

    Args:
        every_n_epochs: Act every n epochs; one of the three intervals may be given.
        every_n_updates: Act every n updates.
        every_n_samples: Act every n samples, after the update that reaches them.
    """

    epoch_event = "on_epoch_end"  # at which it acts with an interval in epochs

    # subclasses pass on `**every`; a config knows their arguments from here
    def __init__(
        self,
        *,
        every_n_epochs: int | None = None,
        every_n_updates: int | None = None,
        every_n_samples: int | None = None,
    ) -> None:
        self.interval = Interval(
            type(self).__name__, every_n_epochs, every_n_updates, every_n_samples
        )
        is_by_epoch = self.interval.unit == "epoch"
        self.ignored_events = ("on_update_end", "on_rewind") if is_by_epoch else (self.epoch_event,)

    def on_train_start(self, trainer: Trainer) -> None:
        self.interval.begin(trainer.progress)

    def on_rewind(self, trainer: Trainer) -> None:
        self.interval.begin(trainer.progress)


class Periodic(AtIntervals):
    """Base class of callbacks that measure and log values every n epochs, updates or samples.
    Override `measure`.

    A value measured after an update is a metric of the update's last step, and the last value is
    part of the epoch's row. A value measured after an epoch is part of the row only. With an
    interval in epochs, updates cost nothing.

    Args:
        every_n_epochs: Measure every n epochs; one of the three intervals may be given.
        every_n_updates: Measure every n updates.
        every_n_samples: Measure every n samples, after the update that reaches them.

    Example:
        >>> from loopwright.callbacks import Periodic
        >>> class Rate(Periodic):
        ...     def measure(self, trainer):
        ...         return {"rate": trainer.optimizer.param_groups[0]["lr"]}
        >>> Rate(every_n_updates=100).interval.n
        100
    """

    epoch_event = "on_train_epoch_end"

    def measure(self, trainer: Trainer) -> Mapping[str, float]:
        """The values to log now."""
        return {}

    def fire(self, trainer: Trainer) -> None:
        """Measure and log now."""
        self.log(trainer, self.measure(trainer))

    def log(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        """Log values of this moment."""
        numbers = {name: float(value) for name, value in values.items()}
        if numbers and self.interval.unit != "epoch":
            trainer.log_step(numbers)
        trainer.log(numbers)

    def on_update_end(self, trainer: Trainer) -> None:
        """Measure if it is due; a stop by a signal waits, so that a resumed run does not lack the
        values."""
        if self.interval.is_due_after_update(trainer.progress):
            with trainer.run.stopping.signals.deferred():
                self.fire(trainer)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        if self.interval.is_due_after_epoch(trainer.progress.epoch + 1):
            self.fire(trainer)


class Watching(AtIntervals):
    """Base class of callbacks that look at one metric every n epochs, updates or samples. Override
    `look`.

    After epochs it can be any metric of the epoch's row; after updates or samples, one that a
    callback has logged in this epoch by then, such as `test_loss` of an `OfflineLoss` with the same
    interval.

    Args:
        metric: The name of the metric.
        mode: Which values are better; "auto" knows it from the metric.
        every_n_epochs: Look every n epochs; one of the three intervals may be given.
        every_n_updates: Look every n updates.
        every_n_samples: Look every n samples, after the update that reaches them.
        min_delta: An improvement is better than the best value so far by more than this.
        takes_first: The first value counts as the best even if it is NaN.

    >>> from loopwright.callbacks import Watching
    >>> class StopAbove(Watching):
    ...     def look(self, trainer, value, metrics):
    ...         if value > 0.9:
    ...             trainer.stop(f"{self.metric} is {value}")
    >>> StopAbove("eval_accuracy", "max").metric
    'eval_accuracy'
    """

    precedence = 1  # after the callbacks that log the metric

    def __init__(
        self,
        metric: str,
        mode: Literal["auto", "min", "max"] = "auto",
        *,
        min_delta: float = 0.0,
        takes_first: bool = False,
        **every: Unpack[Every],
    ) -> None:
        super().__init__(**every)
        owner = type(self).__name__
        check_number(f"{owner}(min_delta", min_delta, least=0, is_whole=False)
        self.metric = metric
        self.watched = WatchedMetric(
            metric, mode, owner, min_delta=min_delta, takes_first=takes_first
        )

    def look(self, trainer: Trainer, value: float, metrics: Mapping[str, float]) -> None:
        """Act on the metric's value; `metrics` are all metrics of this moment."""

    @property
    def mode(self) -> Mode:
        """Which values are better; with "auto", as the run knows it, or by the metric's name."""
        return self.watched.mode

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self.watched.so_far.value

    @property
    def best_at(self) -> int:
        """The epoch, update or sample of the best value."""
        return self.watched.so_far.at

    def watched_metrics(self) -> Iterable[WatchedMetric]:
        return (self.watched,)

    def required_metrics(self) -> set[str]:
        return {self.metric}

    def on_update_end(self, trainer: Trainer) -> None:
        if self.interval.is_due_after_update(trainer.progress):
            metrics = logged_metrics(trainer)
            if self.metric in metrics:
                self.look(trainer, metrics[self.metric], metrics)

    def on_epoch_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        if self.interval.is_due_after_epoch(trainer.progress.epoch):
            self.look(trainer, metric_of(metrics, self.metric, type(self).__name__), metrics)


def cut_epoch(trainer: Trainer) -> Mapping[str, float]:
    """The row of an epoch that a limit or a stop of this `train` call cut short; else empty."""
    progress = trainer.progress
    is_cut = progress.call_finished and progress.in_epoch and len(trainer.history) > progress.epoch
    return trainer.history.epochs[-1] if is_cut else {}


def logged_metrics(trainer: Trainer) -> dict[str, float]:
    """The metrics that callbacks have logged for the epoch under way, each with its latest
    value."""
    logged: dict[str, Any] = trainer.run.metrics.meter.state_dict()["logged"]
    return logged
