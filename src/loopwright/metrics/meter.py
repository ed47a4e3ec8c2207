"""Averages over an epoch or an evaluation: sums and counts in float64, read from the device at log
points only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, isfinite, nan
from numbers import Real
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from ..errors import ConfigurationError
from ..text import kind_of
from .progress import Progress
from .result import StepResult
from .rows import Place, StepRow, StepValues, build_rows

AddUp = Callable[[Mapping[str, tuple[float, float]]], Mapping[str, tuple[float, float]]]
Gather = Callable[[Any], list[Any]]
Check = Callable[[str, "ComputedMetric"], None]
ONE_NUMBER = (
    "pass one number, such as its mean, a one-element tensor, or a metric with `compute` and "
    "`reset`; `log_image`, `log_histogram`, `log_text` and `log_table` log other values"
)
# loss, size, count, metrics, place
Pending = tuple[Any, Any, Any, Mapping[str, Any] | None, Place | None]


@runtime_checkable
class ComputedMetric(Protocol):
    """A metric that keeps its own state between steps, as torchmetrics' do."""

    def compute(self) -> Any: ...

    def reset(self) -> Any: ...


class Meter:
    """Averages the results of a phase (an epoch or an evaluation), without reading from the device
    before `flush`.

    Values are added in the order of the steps, in float64 on the host, so the results do not depend
    on when `flush` is called.

    Args:
        ignores_nonfinite: Leave NaN and infinite values out of the averages, for runs that skip
            such steps.
        logs_once: Refuse a second number of a name that was logged, since it would replace the
            first.
        check: Called as `check(name, metric)` with every metric that keeps its own state, before it
            is first used; it raises an exception to refuse the metric.

    >>> from loopwright import StepResult
    >>> from loopwright.metrics.meter import Meter
    >>> meter = Meter()
    >>> meter.add(StepResult(0.5, size=3))
    >>> meter.add(StepResult(1.5, size=1))
    >>> meter.compute()
    {'loss': 0.75}
    """

    def __init__(
        self,
        *,
        ignores_nonfinite: bool = False,
        logs_once: bool = False,
        check: Check | None = None,
    ) -> None:
        self.ignores_nonfinite = ignores_nonfinite
        self.logs_once = logs_once
        self.check = check
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self.losses: set[str] = set()  # names of metrics that steps returned as losses
        self._pending: list[Pending] = []
        self.computed: dict[str, ComputedMetric] = {}
        self._logged: dict[str, float] = {}
        # whether the row of its phase is written: what is logged now would be lost
        self.is_over = False

    def add(self, result: StepResult, progress: Progress | None = None) -> None:
        """Add the result of a step; with `progress`, the run's counters, `flush_rows` makes a row
        of it."""
        loss = result.loss
        if isinstance(loss, Tensor):
            loss = loss.detach()
        if result.losses:
            self.losses.update(result.losses)
        place = None  # the step is counted already, and its update is not
        if progress is not None:
            place = (
                progress.update + 1,
                progress.step,
                progress.epoch,
                progress.sample,
                progress.seconds,
            )
        self._pending.append((loss, result.size, result.count, result.metrics or None, place))

    def add_to_last(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the step that was added last."""
        if not self._pending:
            raise ConfigurationError(
                "no-step-to-log",
                f"log_step({', '.join(values)}): there is no step to add the value to, because "
                "the last step was already logged. Call it in on_train_step_end or "
                "on_update_end, or use `log` for a metric of the epoch.",
            )
        for name, value in values.items():
            _check_loggable(name, value)
        loss, size, count, metrics, place = self._pending[-1]
        self._pending[-1] = (loss, size, count, {**(metrics or {}), **values}, place)

    def log(self, values: Mapping[str, Any]) -> None:
        """Set values of the whole phase: numbers, one-element tensors, or objects with `compute`
        and `reset`."""
        for name, value in values.items():
            _check_loggable(name, value)
            if not _is_number(value):
                self._take(name, value)
                continue
            if self.logs_once and name in self._logged:
                raise ConfigurationError(
                    "logged-twice",
                    f"log({{{name!r}: ...}}) was called twice in one evaluation, and only the last "
                    "value would count. For the mean over all samples, return it from `eval_step`: "
                    f"`{{'loss': loss, {name!r}: value}}`.",
                )
            self._logged[name] = float(value.detach() if isinstance(value, Tensor) else value)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added or logged."""
        return not (self._pending or self.sums or self.computed or self._logged)

    @property
    def num_pending(self) -> int:
        """The number of steps whose values were not read from the device yet."""
        return len(self._pending)

    def flush(self, weights: list[dict[str, float]] | None = None) -> list[StepValues]:
        """Add pending values to the sums, with one read from the device a name, and return the
        values of each step.

        `weights` gets those of each step by name, where they are needed.
        """
        pending = self._pending
        self._pending = []
        rows = [StepValues() for _ in pending]
        if weights is not None:
            weights += [{} for _ in pending]
        # of each name: step, value, weight, and whether the value is a sum
        columns: dict[str, list[tuple[int, Any, Any, bool]]] = {}
        for at, (loss, size, count, metrics, _) in enumerate(pending):
            if loss is not None:
                weight = size if count is None else count
                columns.setdefault("loss", []).append((at, loss, weight, count is not None))
            for name, value in (metrics or {}).items():
                if isinstance(value, Tensor):
                    value = value.detach()
                elif not isinstance(value, (int, float)) and isinstance(value, ComputedMetric):
                    self._take(name, value)
                    continue
                columns.setdefault(name, []).append((at, value, size, False))
        for name, cells in columns.items():
            self._fold(name, cells, rows, weights)
        return rows

    def flush_rows(self, progress: Progress, add_up: AddUp | None = None) -> list[StepRow]:
        """Flush, and return the values of each step with its place in the run.

        Args:
            progress: The counters of the run.
            add_up: All-reduces the sums and counts, where there are several processes; the rows
                then have their means.
        """
        places = [step[4] for step in self._pending if step[4] is not None]
        weights: list[dict[str, float]] | None = None if add_up is None else []
        values = self.flush(weights)
        if add_up is not None and weights is not None:
            values = average_steps(values, weights, add_up)
        return build_rows(places, values, progress.seconds)

    def _take(self, name: str, metric: ComputedMetric) -> None:
        if self.check is not None and self.computed.get(name) is not metric:
            self.check(name, metric)
        self.computed[name] = metric

    def _fold(
        self,
        name: str,
        cells: list[tuple[int, Any, Any, bool]],
        rows: Sequence[StepValues],
        weights: Sequence[dict[str, float]] | None,
    ) -> None:
        values = _to_host([cell[1] for cell in cells], name)
        counts = _to_host([cell[2] for cell in cells], f"count of {name}")
        total = self.sums.get(name, 0.0)
        count = self.counts.get(name, 0.0)
        for (at, _, _, is_sum), value, weight in zip(cells, values, counts, strict=True):
            if is_sum and not weight >= 0:
                raise ConfigurationError(
                    "negative-count",
                    f"The {name} of a step has the count {weight:g}: use a number, 0 or more.",
                )
            rows[at][name] = (value / weight if weight else 0.0) if is_sum else value
            if weights is not None:
                weights[at][name] = weight
            if self.ignores_nonfinite and not isfinite(value):
                continue
            total += value if is_sum else value * weight
            count += weight
        self.sums[name] = total
        self.counts[name] = count

    def compute(
        self, add_up: AddUp = dict, *, is_final: bool = True, gather: Gather | None = None
    ) -> dict[str, float]:
        """Compute the averages of the phase, and the metrics that keep their own state.

        Args:
            add_up: All-reduces a table of sums and counts, where there are several processes.
            is_final: Whether the phase is over: the metrics that keep their own state are reset
                then.
            gather: Gathers an object from all processes, where there are several.
        """
        self.flush()
        table = add_up({name: (self.sums[name], self.counts[name]) for name in self.sums})
        result = {name: _ratio(total, count) for name, (total, count) in table.items()}
        if gather is None:
            values = {name: metric.compute() for name, metric in self.computed.items()}
        else:
            from .metric_objects import compute_together

            values = compute_together(self.computed, gather)
        for name, value in values.items():
            result |= named_numbers(name, value)
        if is_final:
            self.reset_computed()
        return result | (self._logged if gather is None else average_logged(gather(self._logged)))

    def fresh(self) -> Meter:
        """A meter for the next phase, with the same settings; metrics that keep their own state are
        reset."""
        self.reset_computed()
        return Meter(ignores_nonfinite=self.ignores_nonfinite, check=self.check)

    def reset_computed(self) -> None:
        """Reset the metrics that keep their own state."""
        for metric in self.computed.values():
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """The sums and counts so far, without pending steps: call `flush` or `flush_rows` first."""
        return {"sums": dict(self.sums), "counts": dict(self.counts), "logged": dict(self._logged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pending = []
        self.sums = dict(state["sums"])
        self.counts = dict(state["counts"])
        self._logged = dict(state["logged"])

    def add_state_dict(self, state: Mapping[str, Any]) -> None:
        """Add the sums and counts of another process, whose state this one takes over."""
        for own, theirs in ((self.sums, state["sums"]), (self.counts, state["counts"])):
            for name, value in theirs.items():
                own[name] = own.get(name, 0.0) + value
        self._logged |= state["logged"]


def average_logged(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average values over the processes that logged them; a value that all of these have in common
    stays exactly that.

    >>> average_logged([{"a": 0.1, "b": 1.0}, {"a": 0.1, "b": 2.0}, {"a": 0.1, "c": 5.0}])
    {'a': 0.1, 'b': 1.5, 'c': 5.0}
    """
    columns: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            columns.setdefault(name, []).append(value)
    return {
        name: column[0] if len(set(column)) == 1 else fsum(column) / len(column)
        for name, column in columns.items()
    }


def average_steps(
    steps: Sequence[StepValues], weights: Sequence[Mapping[str, float]], add_up: AddUp
) -> list[StepValues]:
    """Average the metrics of each step over all processes, weighted by the samples (or items) of
    each process."""
    table = {
        f"{at}/{name}": (value * weights[at][name] if weights[at][name] else 0.0, weights[at][name])
        for at, values in enumerate(steps)
        for name, value in values.items()
    }
    result = [StepValues() for _ in steps]
    for key, (total, count) in add_up(table).items():
        at, _, name = key.partition("/")
        result[int(at)][name] = _ratio(total, count)
    return result


def named_numbers(name: str, value: Any) -> dict[str, float]:
    """What a metric computed as numbers: a dict by its keys, a vector (one number per class, say)
    by position."""
    if isinstance(value, Mapping):
        numbers: dict[str, float] = {}
        for part, item in value.items():
            numbers |= named_numbers(str(part), item)
        return numbers
    if isinstance(value, Tensor) and value.dim() == 1 and value.numel() != 1:
        return {f"{name}/{at}": number for at, number in enumerate(value.tolist())}
    if _is_number(value):
        return {name: float(value)}
    raise ConfigurationError(
        "metric-not-numbers",
        f"Metric {name!r} computed {kind_of(value)}, which cannot be logged as numbers: log a "
        "summary of it from your own callback.",
    )


def _ratio(total: float, count: float) -> float:
    return total / count if count else nan


def _to_host(values: list[Any], name: str) -> list[float]:
    """Convert numbers and one-element tensors to floats; tensors are stacked first, so that the
    device is read once."""
    try:
        tensors = [
            value if value.dim() == 0 else value.reshape(())
            for value in values
            if isinstance(value, Tensor)
        ]
        if not tensors:
            return list(map(float, values))
        read = torch.stack(tensors).tolist()
        if len(read) == len(values):
            return cast(list[float], read)
        rest = iter(read)
        return [float(next(rest) if isinstance(value, Tensor) else value) for value in values]
    except (RuntimeError, TypeError, ValueError) as error:
        for value in values:
            if not _is_number(value):
                raise ConfigurationError(
                    "step-metric",
                    f"The {name} of a step is {kind_of(value)}: {ONE_NUMBER}. Put larger values "
                    "into StepResult.outputs.",
                ) from error
        raise


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)


def _check_loggable(name: str, value: Any) -> None:
    if not _is_number(value) and not isinstance(value, ComputedMetric):
        raise ConfigurationError(
            "logged-value",
            f"Cannot log {name!r}: it is {kind_of(value)}; {ONE_NUMBER}.",
        )
