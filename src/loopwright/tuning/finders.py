"""Find a learning rate or a batch size for a trainer, whose state is the same afterwards.

The learning-rate range test trains while the rate grows exponentially. The search for the largest
batch doubles sizes until memory runs out, then bisects; each size is timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..callback import Callback
from ..callbacks.nonfinite import NonFiniteGuard
from ..data.random import all_preserved
from ..errors import ConfigurationError, check_number
from ..metrics.meter import Meter
from ..metrics.result import StepResult
from .trial import (
    TrialWatch,
    fresh_run,
    is_out_of_memory,
    let_go,
    start_again,
    train_for_a_while,
    usable,
)

if TYPE_CHECKING:
    from ..callback import Trainer


SMOOTHING = 0.9
STOP_FACTOR = 4  # a smoothed loss that is this many times the lowest ends a scan
NUM_UPDATES = 4  # of a batch size
LEAST_FALL = 0.01  # of the first loss, to speak of a fall at all
NEARLY = 0.95  # of the best throughput: a smaller batch that has as much is the better one


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
    def _width(self) -> int:
        """The number of neighbours on each side that are averaged."""
        return max(len(self.losses) // 10, 1)

    @property
    def smoothed(self) -> tuple[float, ...]:
        """The losses without most of their noise: means over neighbours on both sides, the nearer
        the heavier."""
        if not self.losses:
            return ()
        width = self._width
        weights = width + 1 - np.abs(np.arange(-width, width + 1))
        sums = np.convolve(self.losses, weights)[width:-width]
        return tuple(
            (sums / np.convolve(np.ones(len(self.losses)), weights)[width:-width]).tolist()
        )

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
        return self.rates[inside[slopes.index(min(slopes))] if min(slopes) < 0 else lowest]

    def _lowest(self) -> int | None:
        """Where the smoothed loss is lowest; None if it is hardly lower than at the beginning."""
        smoothed = self.smoothed
        if not smoothed:
            return None
        low = min(smoothed)
        has_fallen = smoothed[0] - low > LEAST_FALL * abs(smoothed[0])
        return smoothed.index(low) if has_fallen else None

    def to_dict(self) -> dict[str, Any]:
        """Return the scan as plain values, for JSON."""
        return {
            "suggestion": self.suggestion,
            "reason": self.reason,
            "rates": list(self.rates),
            "losses": list(self.losses),
            "smoothed": list(self.smoothed),
        }


def find_learning_rate(
    trainer: Trainer,
    data: Any = None,
    *,
    lowest: float = 1e-7,
    highest: float = 1.0,
    num_updates: int = 100,
    optimizer: str | None = None,
    batch_size: int | None = None,
) -> LearningRateScan:
    """Train while the learning rate grows exponentially; the trainer's state is the same
    afterwards.

    Parameter groups keep the proportions of their rates. Of the callbacks, only initialisers and
    `Freeze` take part. The scan ends early if the smoothed loss is four times the lowest, or not
    finite.

    Args:
        trainer: The trainer; a fresh run of it is trained and discarded.
        data: Training data, as for `Trainer.train`; an iterator is used up. Default: the data of
            `configure_data`.
        lowest: The first learning rate.
        highest: The last learning rate.
        num_updates: The number of updates, one for each rate.
        optimizer: The name of the optimizer whose rate is scanned, where there are several.
        batch_size: Samples per batch, where the data is not in batches.

    Returns:
        The rates and losses, with a `suggestion` (None where the loss never falls).

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
    shares = [number / (num_updates - 1) for number in range(num_updates)]
    rates = [lowest * (highest / lowest) ** share for share in shares]
    growth = _Growth(rates, optimizer)
    with all_preserved():
        data = trainer.configure_data()[0] if data is None else data
    with fresh_run(trainer, [NonFiniteGuard("stop"), growth]):
        train_for_a_while(trainer, data, num_updates, batch_size)
        reason = trainer.stop_reason or f"all {num_updates} updates were taken"
    return LearningRateScan(tuple(rates[: len(growth.losses)]), tuple(growth.losses), reason)


class _Growth(Callback):
    """Callback that sets the rate of each update and records its loss."""

    def __init__(self, rates: list[float], optimizer: str | None) -> None:
        self.rates = rates
        self.losses: list[float] = []
        self._optimizer = optimizer
        self._average = 0.0
        self._lowest_average = math.inf
        self._meter = Meter()
        self._groups: list[tuple[dict[str, Any], float]] = []

    def on_train_start(self, trainer: Trainer) -> None:
        self._groups = _groups_of(trainer, self._optimizer)
        self._set(self.rates[0])

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: StepResult) -> None:
        if result.loss is None:
            raise ConfigurationError(
                "scan-without-loss",
                "train_step returned no loss, which the scan needs: return the loss.",
            )
        self._meter.add(result)

    def on_update_end(self, trainer: Trainer) -> None:
        loss = self._meter.compute(trainer.runtime.sum_table)["loss"]
        self._meter = Meter()
        if not math.isfinite(loss):
            trainer.run.stop(f"the loss was {loss} at a rate of {self.rates[len(self.losses)]:.3g}")
            return
        self.losses.append(loss)
        number = len(self.losses)
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        average = self._average / (1 - SMOOTHING**number)
        self._lowest_average = min(self._lowest_average, average)
        rise = average - self._lowest_average
        if rise > (STOP_FACTOR - 1) * abs(self._lowest_average):
            trainer.run.stop(f"the loss rose to more than {STOP_FACTOR} times its lowest")
        if number < len(self.rates):
            self._set(self.rates[number])

    def _set(self, rate: float) -> None:
        for group, share in self._groups:
            if isinstance(group["lr"], Tensor):  # a compiled optimizer keeps a reference to it
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share


def _groups_of(trainer: Trainer, name: str | None) -> list[tuple[dict[str, Any], float]]:
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


@dataclass(frozen=True, slots=True)
class Trial:
    """One batch size: whether it fits, how fast it is, and how much memory a step needs besides the
    weights.

    Args:
        size: Samples per batch.
        fits: Whether all updates ran.
        samples_per_second: The speed; None where the size does not fit.
        memory: Bytes that a step keeps besides the weights, where they were measured.
        reason: Why the size does not fit; None where it does.

    >>> from loopwright.tuning import Trial
    >>> Trial(64, fits=True, samples_per_second=1000.0).reason is None
    True
    """

    size: int
    fits: bool
    samples_per_second: float | None = None
    memory: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BatchSizeScan:
    """The result of `find_batch_size`.

    Args:
        trials: The sizes in the order in which they were tried.
        bound: What ended the search: memory, the data set, or `max_size`.

    >>> from loopwright.tuning import BatchSizeScan, Trial
    >>> scan = BatchSizeScan((Trial(32, True, 900.0), Trial(64, True, 910.0), Trial(128, False)), "memory")
    >>> scan.largest, scan.suggestion
    (64, 32)
    """

    trials: tuple[Trial, ...]
    bound: str

    @property
    def largest(self) -> int | None:
        """The largest size that fits; None where not even the smallest does."""
        return max((trial.size for trial in self.trials if trial.fits), default=None)

    @property
    def suggestion(self) -> int | None:
        """The smallest size that is about as fast as the fastest."""
        speeds = {
            t.size: t.samples_per_second
            for t in self.trials
            if t.fits and t.samples_per_second is not None
        }
        best = max(speeds.values(), default=0.0)
        return min(
            (size for size, speed in speeds.items() if speed >= NEARLY * best), default=self.largest
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the scan as plain values, for JSON."""
        return {
            "largest": self.largest,
            "suggestion": self.suggestion,
            "bound": self.bound,
            "trials": [asdict(trial) for trial in self.trials],
        }


def find_batch_size(
    trainer: Trainer,
    data: Any,
    *,
    start: int = 1,
    max_size: int = 4096,
) -> BatchSizeScan:
    """Find the largest batch size that fits in memory; the trainer's state is the same afterwards.

    Sizes are doubled from `start` until one does not fit, then bisected. On the CPU, where running
    out of memory ends the process, a size is not tried if its step would need more than 80 % of
    the free memory, estimated from smaller sizes.

    Args:
        trainer: The trainer; a fresh run of it is trained and discarded.
        data: A data set with a length.
        start: The first size, in samples.
        max_size: The largest size to try; no size is larger than the data set.

    Returns:
        The trials, with `largest` (the largest size that fits) and `suggestion` (the smallest that
        is about as fast as the fastest).

    Example:
        >>> import torch, loopwright
        >>> from loopwright.tuning import find_batch_size
        >>> x, model = torch.randn(8, 3), torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = loopwright.Trainer(model, optimizer, torch.nn.MSELoss(), progress="silent")
        >>> find_batch_size(trainer, torch.utils.data.TensorDataset(x, x[:, :1])).largest
        8
    """
    if isinstance(data, DataLoader | IterableDataset) or not isinstance(data, Dataset):
        raise ConfigurationError(
            "needs-data-set",
            f"Data of type {type(data).__name__} makes its own batches, or has no length: pass "
            "the data set itself, so that batches of any size can be made.",
        )
    length = len(data)  # type: ignore[arg-type]  # a map-style data set
    most = min(max_size, length)
    if not 1 <= start <= most:
        raise ConfigurationError(
            "batch-size-range",
            f"Batches from {start} to {max_size} samples of {length}: use 1 <= start <= max_size, "
            "and at most the number of samples.",
        )
    is_host = trainer.runtime.device.type == "cpu"
    memory = usable() if is_host else None
    trials: list[Trial] = []

    def fits(size: int) -> bool:
        watch = TrialWatch(size, length // size)
        trial = _foreseen(trials, size, memory)
        if trial is None:
            trial = _try(trainer, data, watch, memory)
        trials.append(trial)
        return trial.fits

    with fresh_run(trainer, [NonFiniteGuard("off"), Callback()]):
        size = start
        while fits(size) and size < most:
            size = min(2 * size, most)
        fitting = max((trial.size for trial in trials if trial.fits), default=0)
        failing = size
        while fitting and failing - fitting > 1:
            size = (fitting + failing) // 2
            if fits(size):
                fitting = size
            else:
                failing = size
    bound = f"memory: {failing} samples do not fit"
    if fitting == most:
        bound = f"max_size, {max_size} samples"
        if length <= max_size:
            bound = f"the data set, which has {length} samples"
    return BatchSizeScan(tuple(trials), bound)


def _foreseen(trials: Sequence[Trial], size: int, memory: int | None) -> Trial | None:
    """A size that would need more than there is, going by the largest before it."""
    known = max((trial for trial in trials if trial.memory), key=lambda t: t.size, default=None)
    if known is None or known.memory is None or memory is None:
        return None
    need = known.memory * size // known.size
    reason = f"would need about {need} bytes, but only {memory} are available"
    return Trial(size, False, memory=need, reason=reason) if need > memory else None


def _try(trainer: Trainer, data: Any, watch: TrialWatch, memory: int | None) -> Trial:
    """Train a few updates with batches of the watch's size."""
    size = watch.size
    trainer.callbacks[-1] = watch
    start_again(trainer)
    trainer.accumulate = 1
    try:
        train_for_a_while(trainer, data, NUM_UPDATES, size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        let_go(error)
        return Trial(size, False, reason="memory ran out")
    if trainer.run.num_micro_batches > 1:
        return Trial(size, False, reason="memory ran out; it would fit in micro-batches")
    if watch.memory is not None and memory is not None and watch.memory > memory:
        reason = f"needs {watch.memory} bytes, but only {memory} are available"
        return Trial(size, False, memory=watch.memory, reason=reason)
    speed = size / watch.seconds if watch.seconds else None
    return Trial(size, True, speed, watch.memory)
