"""The learning-rate range test: train while the rate grows exponentially, and suggest a rate from
the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..callback import Callback
from ..callbacks.nonfinite import NonFiniteGuard
from ..data.random import all_preserved
from ..errors import ConfigurationError, MissingExtraError, check_number
from ..metrics.meter import Meter
from ..metrics.result import StepResult
from ..training.program import Program
from .fresh_run import fresh_run, train_for_a_while

SMOOTHING = 0.9
LEAST_FALL = 0.01  # of the first loss, to speak of a fall at all


@dataclass(frozen=True, slots=True)
class LearningRateScan:
    """The result of `find_learning_rate`.

    Args:
        rates: The learning rates, growing.
        losses: The loss of the update with each rate.
        reason: Why the scan ended.

    >>> from loopwright.tuning import LearningRateScan
    >>> scan = LearningRateScan((1e-4, 1e-3, 1e-2, 1e-1, 1.0), (1.0, 1.0, 0.5, 0.1, 3.0), "all updates were taken")
    >>> scan.suggestion in scan.rates
    True
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    reason: str

    @property
    def smoothed(self) -> tuple[float, ...]:
        """The losses without most of their noise: means over neighbours on both sides, the nearer
        the heavier."""
        width = self._width
        losses = self.losses
        return tuple(_weighted(losses, at, width) for at in range(len(losses)))

    @property
    def _width(self) -> int:
        """The number of neighbours on each side that are averaged."""
        return max(len(self.losses) // 10, 1)

    @property
    def suggestion(self) -> float | None:
        """The rate to begin with: around which the loss falls fastest, by orders of magnitude of
        the rate; None where it never falls."""
        lowest = self._lowest()
        width = self._width
        if lowest is None:
            return None
        inside = range(width, max(lowest - width, width) + 1)
        smoothed = self.smoothed
        near = [smoothed[at - width : at + width + 1] for at in inside]
        slopes = [np.polyfit(range(len(values)), values, 1)[0] for values in near]
        return self.rates[inside[slopes.index(min(slopes))]] if min(slopes) < 0 else self.valley

    @property
    def valley(self) -> float | None:
        """The first rate at which half of the way down to the lowest smoothed loss is done."""
        lowest = self._lowest()
        smoothed = self.smoothed
        if lowest is None:
            return None
        top = max(smoothed[: lowest + 1])
        half = (top + smoothed[lowest]) / 2
        return next(
            self.rates[at] for at in range(smoothed.index(top), lowest + 1) if smoothed[at] <= half
        )

    def _lowest(self) -> int | None:
        """Where the smoothed loss is lowest; None if it is hardly lower than at the beginning."""
        smoothed = self.smoothed
        if not smoothed:
            return None
        first = smoothed[0]
        low = min(smoothed)
        return smoothed.index(low) if first - low > LEAST_FALL * abs(first) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the scan as plain values, for JSON."""
        return {
            "suggestion": self.suggestion,
            "valley": self.valley,
            "reason": self.reason,
            "rates": list(self.rates),
            "losses": list(self.losses),
            "smoothed": list(self.smoothed),
        }

    def plot(self, path: str | Path) -> None:
        """Draw the curve to a file."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError(
                "plots-extra", "Drawing a scan needs matplotlib: pip install 'loopwright[plots]'."
            ) from error
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.semilogx(self.rates, self.losses, color="0.8", label="loss")
        axes.semilogx(self.rates, self.smoothed, label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--", label=f"suggestion {self.suggestion:.3g}")
        axes.set(xlabel="learning rate", ylabel="loss")
        axes.legend()
        figure.savefig(path)


def _weighted(values: Sequence[float], at: int, width: int) -> float:
    near = range(max(at - width, 0), min(at + width + 1, len(values)))
    weights = [1 + width - abs(number - at) for number in near]
    return sum(weight * values[number] for weight, number in zip(weights, near, strict=True)) / sum(
        weights
    )


def find_learning_rate(
    trainer: Program,
    data: Any = None,
    *,
    lowest: float = 1e-7,
    highest: float = 1.0,
    num_updates: int = 100,
    optimizer: str | None = None,
    batch_size: int | None = None,
    stop_factor: float = 4.0,
) -> LearningRateScan:
    """Train while the learning rate grows exponentially; the trainer's state is the same
    afterwards.

    Parameter groups keep the proportions of their rates. Of the callbacks, only initialisers and
    `Freeze` take part.

    Args:
        trainer: The trainer; a fresh run of it is trained and discarded.
        data: Training data, as for `Trainer.train`; an iterator is used up. Default: the data of
            `configure_data`.
        lowest: The first learning rate.
        highest: The last learning rate.
        num_updates: The number of updates, one for each rate.
        optimizer: The name of the optimizer whose rate is scanned, where there are several.
        batch_size: Samples per batch, where the data is not in batches.
        stop_factor: End early if the smoothed loss is this many times the lowest, or not finite.

    Returns:
        The rates and losses, with a `suggestion` (None where the loss never falls) and
        `plot(path)`.

    Example:
        >>> import torch, loopwright
        >>> from loopwright.tuning import find_learning_rate
        >>> x, model = torch.randn(64, 3), torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = loopwright.Trainer(model, optimizer, torch.nn.MSELoss(), progress="silent")
        >>> scan = find_learning_rate(trainer, (x, x.sum(1, keepdim=True)), num_updates=20)
        >>> 1e-7 < scan.suggestion < 1
        True
    """
    if not 0 < lowest < highest < math.inf:
        raise ConfigurationError(
            "scan-range", f"Rates from {lowest} to {highest}: use 0 < lowest < highest."
        )
    check_number("num_updates", num_updates, least=3)
    growth = _Growth(lowest, highest, num_updates, optimizer, stop_factor)
    with all_preserved():
        data = trainer.configure_data()[0] if data is None else data
    with fresh_run(trainer, [NonFiniteGuard("stop"), growth]):
        train_for_a_while(trainer, data, num_updates, batch_size)
        reason = trainer.stop_reason or f"all {num_updates} updates were taken"
    return LearningRateScan(tuple(growth.rates), tuple(growth.losses), reason)


class _Growth(Callback):
    """Callback that sets the rate of each update and records its loss."""

    def __init__(
        self, lowest: float, highest: float, count: int, optimizer: str | None, stop_factor: float
    ) -> None:
        self._lowest = lowest
        self._ratio = highest / lowest
        self._count = count
        self._optimizer = optimizer
        self._stop_factor = stop_factor
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._average = 0.0
        self._lowest_average = math.inf
        self._meter = Meter()
        self._groups: list[tuple[dict[str, Any], float]] = []

    def on_train_start(self, trainer: Program) -> None:
        self._groups = _groups_of(trainer, self._optimizer)
        self._set(0)

    def on_train_step_end(self, trainer: Program, batch: Any, result: StepResult) -> None:
        if result.loss is None:
            raise ConfigurationError(
                "scan-without-loss",
                "train_step returned no loss, which the scan needs: return the loss.",
            )
        self._meter.add(result)

    def on_update_end(self, trainer: Program) -> None:
        loss = self._meter.compute(trainer.runtime.sum_table)["loss"]
        self._meter = Meter()
        if not math.isfinite(loss):
            trainer.run.stop(f"the loss was {loss} at a rate of {self._rate(len(self.rates)):.3g}")
            return
        average = self._note(loss)
        lowest = self._lowest_average = min(self._lowest_average, average)
        if average - lowest > (self._stop_factor - 1) * abs(lowest):
            trainer.run.stop(f"the loss rose to more than {self._stop_factor:g} times its lowest")
        self._set(len(self.rates))

    def _note(self, loss: float) -> float:
        """Record the loss and return the exponential moving average of the losses."""
        self.rates.append(self._rate(len(self.rates)))
        self.losses.append(loss)
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        return self._average / (1 - SMOOTHING ** len(self.losses))

    def _rate(self, number: int) -> float:
        return float(self._lowest * self._ratio ** (number / (self._count - 1)))

    def _set(self, number: int) -> None:
        for group, share in self._groups:
            rate = self._rate(number) * share
            if isinstance(group["lr"], Tensor):  # a compiled optimizer keeps a reference to it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _groups_of(trainer: Program, name: str | None) -> list[tuple[dict[str, Any], float]]:
    """Return the parameter groups that are scanned, each with its rate divided by the largest."""
    if name is None and len(trainer.optimizers) > 1:
        raise ConfigurationError(
            "which-optimizer-to-scan",
            f"There are several optimizers ({', '.join(trainer.optimizers)}): name the one to "
            "scan with `optimizer=`.",
        )
    chosen = next(iter(trainer.optimizers)) if name is None else name
    groups: Sequence[dict[str, Any]] = trainer.optimizers[chosen].param_groups
    largest = max(float(group["lr"]) for group in groups)
    return [(group, float(group["lr"]) / largest if largest > 0 else 1.0) for group in groups]
