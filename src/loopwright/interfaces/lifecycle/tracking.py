"""What a run recorded: named series of values, and the number of the epoch they belong to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from ...errors import ConfigurationError
from ...text import nearest


class RunHistory(ABC):
    """Where metrics go. Subclass it to keep them elsewhere; `state_dict` makes them part of a
    training state."""

    @abstractmethod
    def get_metric_names(self) -> Iterable[str]:
        """The names of all metrics that have been recorded."""

    @abstractmethod
    def get_metric_values(self, metric_name: str) -> Iterable[Any]:
        """All values of a metric, oldest first."""

    @abstractmethod
    def get_latest_metric(self, metric_name: str) -> Any:
        """The value of a metric that was recorded last."""

    @abstractmethod
    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value under this name, with the prefix in front of it."""

    def delete_metric(self, metric_name: str) -> None:
        """Delete a metric with all its values."""
        raise ConfigurationError(
            "undeletable-metric",
            f"{type(self).__name__} cannot delete a metric: add the method "
            "`delete_metric(metric_name)`.",
        )

    @property
    def metric_name_prefix(self) -> str:
        """The prefix of the names under which metrics are recorded."""
        return ""

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Change the prefix; without an argument there is none."""
        if prefix:
            raise ConfigurationError(
                "no-metric-prefix",
                f"{type(self).__name__} does not support a prefix for metric names, so metrics "
                f"with the prefix {prefix!r} would be mixed up with others: add "
                "`set_metric_name_prefix(prefix)` and `metric_name_prefix`.",
            )

    @property
    @abstractmethod
    def current_epoch(self) -> int:
        """The number of the epoch under way, counted from 1."""

    @abstractmethod
    def _increment_epoch(self) -> None:
        """Go to the next epoch."""

    def _set_epoch(self, epoch: int) -> None:
        """Go on in that epoch. Default: from one to the next, so that it has to be a later one."""
        while self.current_epoch < epoch:
            self._increment_epoch()

    @abstractmethod
    def reset(self) -> None:
        """Delete all values and go back to epoch 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a training state must keep of this history. Default: nothing."""
        return {}

    # a history may keep nothing
    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what `state_dict` returned."""


class InMemoryRunHistory(RunHistory):
    """Keeps everything in lists. Tensors are kept on their device, without their graph."""

    def __init__(self) -> None:
        self._metrics: defaultdict[str, list[Any]] = defaultdict(list)
        self._current_epoch = 1
        self._prefix = ""

    def get_metric_names(self) -> set[str]:
        return set(self._metrics)

    def get_metric_values(self, metric_name: str) -> list[Any]:
        return list(self._series(metric_name))

    def get_latest_metric(self, metric_name: str) -> Any:
        return self._series(metric_name)[-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        value = metric_value.detach() if isinstance(metric_value, Tensor) else metric_value
        self._metrics[self._prefix + metric_name].append(value)

    def delete_metric(self, metric_name: str) -> None:
        self._series(metric_name)
        del self._metrics[metric_name]

    @property
    def metric_name_prefix(self) -> str:
        return self._prefix

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        self._prefix = prefix

    @property
    def current_epoch(self) -> int:
        return self._current_epoch

    def _increment_epoch(self) -> None:
        self._current_epoch += 1

    def _set_epoch(self, epoch: int) -> None:
        self._current_epoch = epoch

    def reset(self) -> None:
        self._metrics = defaultdict(list)
        self._current_epoch = 1
        self._prefix = ""

    def state_dict(self) -> dict[str, Any]:
        metrics = {name: list(values) for name, values in self._metrics.items()}
        return {"metrics": metrics, "epoch": self._current_epoch, "prefix": self._prefix}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._metrics = defaultdict(
            list, {name: list(values) for name, values in state["metrics"].items()}
        )
        self._current_epoch = state["epoch"]
        self._prefix = state["prefix"]

    def _series(self, name: str) -> list[Any]:
        if name in self._metrics:
            return self._metrics[name]
        raise ConfigurationError(
            "unknown-run-metric",
            f"No values have been recorded for the metric {name!r}; {nearest(name, self._metrics)}",
        )


def num_recorded(history: RunHistory) -> dict[str, int]:
    """How many values of each metric a history has: the position of one who reads it."""
    return {name: len(list(history.get_metric_values(name))) for name in history.get_metric_names()}


def values_since(history: RunHistory, before: Mapping[str, int]) -> dict[str, Any]:
    """The latest values of the metrics that were recorded since a position, by name."""
    counts = sorted(num_recorded(history).items())
    new = [name for name, count in counts if count != before.get(name, 0)]
    return {name: history.get_latest_metric(name) for name in new}


def only_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, as trackers and records of runs take them."""
    return {name: float(value) for name, value in metrics.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    is_scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    return is_scalar or isinstance(value, Real)


class LossTracker:
    """Adds up losses, each of them the mean of a batch; for an epoch of the user's own.

    `is_reported` says that the steps of this epoch reported their losses to the run, which adds
    them up itself.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.loss_value = 0.0
        self.total_loss = 0.0
        self.running_count = 0
        self.is_reported = False

    def update(self, loss_batch_value: float, batch_size: int = 1) -> None:
        self.loss_value = loss_batch_value
        self.total_loss += loss_batch_value * batch_size
        self.running_count += batch_size

    @property
    def average(self) -> float:
        """The mean over all samples so far; 0 without any."""
        return self.total_loss / self.running_count if self.running_count else 0.0
