"""Averages over a phase: sums and counts in float64, read from the device only when someone needs a number."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .errors import ConfigurationError
from .step import StepResult


@runtime_checkable
class ComputedMetric(Protocol):
    """A metric that keeps its own state between steps, as torchmetrics' do."""

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


class Meter:
    """Collects the results of a phase without touching the device's queue until `flush`.

    `ignores_nonfinite` leaves NaN and infinite values out of the averages, for runs that skip such steps. Values are folded in the order they came, in float64 on the host, so when `flush` happens changes nothing.
    """

    def __init__(self, *, ignores_nonfinite: bool = False) -> None:
        self.ignores_nonfinite = ignores_nonfinite
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self._pending: list[tuple[Any, Any, Any, Mapping[str, Any] | None]] = []
        self._computed: dict[str, ComputedMetric] = {}
        self._logged: dict[str, float] = {}

    def add(self, result: StepResult) -> None:
        loss = result.loss
        if isinstance(loss, Tensor):
            loss = loss.detach()
        self._pending.append((loss, result.size, result.count, result.metrics or None))

    def add_to_last(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the step that was added last."""
        loss, size, count, metrics = self._pending[-1]
        self._pending[-1] = (loss, size, count, {**(metrics or {}), **values})

    def log(self, values: Mapping[str, Any]) -> None:
        """Note values of the whole phase: numbers, one-element tensors, or objects with `compute` and `reset`."""
        for name, value in values.items():
            if isinstance(value, (int, float, Tensor)):
                self._logged[name] = float(value)
            elif isinstance(value, ComputedMetric):
                self._computed[name] = value
            else:
                raise ConfigurationError(
                    f"Cannot log {name!r}: it is a {type(value).__name__}; give a number, a one-element tensor, "
                    "or a metric with `compute` and `reset`."
                )

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def flush(self) -> list[dict[str, float]]:
        """Fold in what is pending, with one read from the device a name; give it back, a dict a step."""
        pending, self._pending = self._pending, []
        rows: list[dict[str, float]] = [{} for _ in pending]
        columns: dict[str, list[tuple[int, Any, Any, bool]]] = {}
        for at, (loss, size, count, metrics) in enumerate(pending):
            if loss is not None:
                weight = size if count is None else count
                columns.setdefault("loss", []).append((at, loss, weight, count is not None))
            if metrics:
                self._spread(columns, at, metrics, size)
        for name, cells in columns.items():
            self._fold(name, cells, rows)
        return rows

    def _spread(self, columns: dict[str, Any], at: int, metrics: Mapping[str, Any], size: int) -> None:
        for name, value in metrics.items():
            if isinstance(value, Tensor):
                if value.numel() != 1:
                    raise ConfigurationError(
                        f"Metric {name!r} has shape {tuple(value.shape)}: return one number a step, "
                        "such as its mean, or keep whole tensors in StepResult.outputs."
                    )
                columns.setdefault(name, []).append((at, value.detach(), size, False))
            elif not isinstance(value, (int, float)) and isinstance(value, ComputedMetric):
                self._computed[name] = value
            else:
                columns.setdefault(name, []).append((at, value, size, False))

    def _fold(self, name: str, cells: list[tuple[int, Any, Any, bool]], rows: list[dict[str, float]]) -> None:
        values = _to_host([cell[1] for cell in cells])
        weights = _to_host([cell[2] for cell in cells])
        total, count = self.sums.get(name, 0.0), self.counts.get(name, 0.0)
        for (at, _, _, is_sum), value, weight in zip(cells, values, weights, strict=True):
            rows[at][name] = (value / weight if weight else 0.0) if is_sum else value
            if self.ignores_nonfinite and not isfinite(value):
                continue
            total += value if is_sum else value * weight
            count += weight
        self.sums[name], self.counts[name] = total, count

    def compute(self) -> dict[str, float]:
        """The phase's averages, and the values of metrics that keep their own state (which are reset)."""
        self.flush()
        result = {name: _ratio(self.sums[name], self.counts[name]) for name in self.sums}
        for name, metric in self._computed.items():
            value = metric.compute()
            metric.reset()
            result.update(
                {k: float(v) for k, v in value.items()} if isinstance(value, Mapping) else {name: float(value)}
            )
        return result | self._logged

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts so far; what is pending belongs to whoever calls `flush`, so do that first."""
        return {"sums": dict(self.sums), "counts": dict(self.counts), "logged": dict(self._logged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pending = []
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        self._logged = dict(state["logged"])


def _ratio(total: float, count: float) -> float:
    return total / count if count else 0.0


def _to_host(values: list[Any]) -> list[float]:
    """Numbers as floats; tensors are stacked first, so that the device is read once."""
    at = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
    if not at:
        return [float(value) for value in values]
    if len(at) == len(values):
        stacked: list[float] = torch.stack([value.reshape(()) for value in values]).tolist()
        return stacked
    read = torch.stack([values[i].reshape(()) for i in at]).tolist()
    for i, value in zip(at, read, strict=True):
        values[i] = value
    return [float(value) for value in values]
