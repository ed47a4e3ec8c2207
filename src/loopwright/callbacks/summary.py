"""Summaries before a run: numbers of parameters, statistics of data sets."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..callback import Callback
from ..data.random import preserved_rng
from ..trees import named_leaves
from .losses import named_data

if TYPE_CHECKING:
    from ..callback import Trainer


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters of a module, each counted once, and the number of trainable
    ones."""
    params = [param for param in module.parameters() if not is_lazy(param)]
    return sum(p.numel() for p in params), sum(p.numel() for p in params if p.requires_grad)


class ParameterCount(Callback):
    """Prints the number of parameters of each model, and how many of them are trainable, when
    training starts.

    The attribute `counts` has both numbers, and so has `artifacts/parameters.json` of a run
    directory.

    >>> from loopwright.callbacks import ParameterCount
    >>> callback = ParameterCount()
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}

    def on_train_start(self, trainer: Trainer) -> None:
        self.counts = {}
        for name, model in trainer.models.items():
            total, trained = count_parameters(model)
            self.counts[name] = {"total": total, "trained": trained}
            trainer.run.say(f"{name}: {total:,} parameters, {trained:,} of them trained")
        _write(trainer, "parameters.json", self.counts)


@dataclass(slots=True)
class FieldStatistics:
    """Mean, standard deviation, minimum and maximum of all values of a field, accumulated over
    batches in float64."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # the sum of squared distances from the mean
    min: float = math.inf
    max: float = -math.inf

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else math.nan

    def add(self, values: Tensor) -> None:
        """Add values; means and squared deviations are merged, which is exact enough also for a
        large mean."""
        values = values.detach().to(torch.float64)
        count = values.numel()
        if not count:
            return
        mean = values.mean().item()
        squares = (values - mean).square().sum().item()
        total = self.count + count
        distance = mean - self.mean
        self.squares += squares + distance * distance * self.count * count / total
        self.mean += distance * count / total
        self.count = total
        self.min = min(self.min, values.min().item())
        self.max = max(self.max, values.max().item())


class DatasetStatistics(Callback):
    """Prints mean, standard deviation, minimum and maximum of every field of a data set before a
    run begins.

    A field is a key of a dict or an index of a tuple; complex tensors are left out. The attribute
    `statistics` has the result, and so has `artifacts/statistics-<dataset_key>.json` of a run
    directory. With several processes, each reads its shard of the data.

    Args:
        dataset_key: "train", "eval", or a key of `trainer.datasets`.
        num_samples: The number of samples to read, from the first; all by default.

    >>> from loopwright.callbacks import DatasetStatistics
    >>> callback = DatasetStatistics(num_samples=1000)
    """

    def __init__(self, dataset_key: str = "train", *, num_samples: int | None = None) -> None:
        self.dataset_key = dataset_key
        self.num_samples = num_samples
        self.statistics: dict[str, FieldStatistics] = {}

    def on_train_start(self, trainer: Trainer) -> None:
        if trainer.progress.step:  # a continued run
            return
        self.measure(trainer)
        for name, found in self.statistics.items():
            trainer.run.say(
                f"{self.dataset_key}.{name}: mean {found.mean:.6g}  std {found.std:.6g}  "
                f"min {found.min:.6g}  max {found.max:.6g}  ({found.count:,} values)"
            )
        kinds = ("count", "mean", "std", "min", "max")
        measured = {
            name: {kind: getattr(found, kind) for kind in kinds}
            for name, found in self.statistics.items()
        }
        _write(trainer, f"statistics-{self.dataset_key}.json", measured)

    def measure(self, trainer: Trainer) -> dict[str, FieldStatistics]:
        """Read the data now and return the statistics; random generators are restored
        afterwards."""
        data = named_data(trainer, self.dataset_key, type(self).__name__)
        stream = trainer.run.data.eval_stream
        if data is not None:
            stream = trainer._open(data, None, shuffle=False)
        assert stream is not None
        self.statistics = {}
        left = self.num_samples
        with preserved_rng():
            stream.begin(0)
            while (left is None or left > 0) and (batches := stream.take(1, left)):
                left = None if left is None else left - batches[0].size
                for name, values in named_leaves(batches[0].value):
                    if isinstance(values, Tensor) and not values.is_complex():
                        self.statistics.setdefault(name or "value", FieldStatistics()).add(values)
        if data is not None:
            stream.close()
        return self.statistics


def _write(trainer: Trainer, name: str, content: Any) -> None:
    if trainer.run.files.directory is not None and trainer.runtime.is_main:
        (trainer.run.files.directory.artifacts / name).write_text(
            json.dumps(content, indent=2) + "\n"
        )
