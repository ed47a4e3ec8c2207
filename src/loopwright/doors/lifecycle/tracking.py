"""What a run recorded: named series of values, and the number of the epoch they belong to."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ...errors import ConfigurationError


class RunHistory(ABC):
    """Where metrics go. Subclass it to keep them elsewhere; `state_dict` makes them part of a training state."""

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
        """Record another value, under the name with the prefix in front of it."""

    @abstractmethod
    def delete_metric(self, metric_name: str) -> None:
        """Forget a metric and all its values."""

    @property
    @abstractmethod
    def metric_name_prefix(self) -> str:
        """What is put in front of the names of metrics when they are recorded."""

    @abstractmethod
    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Change the prefix; without an argument there is none."""

    @property
    @abstractmethod
    def current_epoch(self) -> int:
        """The number of the epoch under way, counted from 1."""

    @abstractmethod
    def _increment_epoch(self) -> None:
        """Go to the next epoch."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything and go back to epoch 1."""

    def state_dict(self) -> dict[str, Any]:
        """What a training state must hold of this history. Default: nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (a history may keep nothing)
        """Take back what `state_dict` gave."""


class InMemoryRunHistory(RunHistory):
    """Keeps everything in lists. Tensors are kept on their device, without their graph."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[Any]] = {}
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
        self._metrics.setdefault(self._prefix + metric_name, []).append(value)

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

    def reset(self) -> None:
        self._metrics, self._current_epoch, self._prefix = {}, 1, ""

    def state_dict(self) -> dict[str, Any]:
        metrics = {name: list(values) for name, values in self._metrics.items()}
        return {"metrics": metrics, "epoch": self._current_epoch, "prefix": self._prefix}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._metrics = {name: list(values) for name, values in state["metrics"].items()}
        self._current_epoch, self._prefix = state["epoch"], state["prefix"]

    def _series(self, name: str) -> list[Any]:
        if name in self._metrics:
            return self._metrics[name]
        near = difflib.get_close_matches(name, self._metrics, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self._metrics)) or "nothing yet"
        raise ConfigurationError(f"No values have been recorded for the metric {name!r}; there is: {known}.{hint}")
