"""The history of a run: one row of metrics per epoch, and a series of bounded length per step
metric."""

from __future__ import annotations

from array import array
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingExtraError
from ..text import counted, nearest
from .rows import StepRow

MAX_POINTS = 1 << 17


class Series:
    """The values of one step metric. At `MAX_POINTS`, every second point is dropped, so memory is
    bounded.

    `series.steps` has the numbers of the steps, `series.values` the values; iterating gives the
    values. Of all values that were added (`num_seen`), every `stride`-th is kept.
    """

    __slots__ = ("num_seen", "steps", "stride", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self.stride = 1
        self.num_seen = 0

    def add(self, points: Iterable[tuple[int, float]]) -> None:
        """Add steps with their values, in order; whether a point is kept does not depend on how
        many come at once."""
        for step, value in points:
            if self.num_seen % self.stride == 0:
                self.steps.append(step)
                self.values.append(value)
                if len(self.steps) >= MAX_POINTS:
                    self.stride *= 2
                    self.steps = self.steps[::2]
                    self.values = self.values[::2]
            self.num_seen += 1

    def since(self, num_seen: int) -> Series:
        """The points that came after the first `num_seen` values, as a series of their own."""
        added = Series()
        first = self._num_points(num_seen, self.stride)
        added.stride = self.stride
        added.num_seen = self.num_seen
        added.steps = self.steps[first:]
        added.values = self.values[first:]
        return added

    def extend(self, added: Series) -> None:
        """Append what `since` returned of a longer series; points that it has dropped in the
        meantime are dropped."""
        thinning = max(added.stride // self.stride, 1)
        if thinning > 1:
            self.steps = self.steps[::thinning]
            self.values = self.values[::thinning]
        self.steps.extend(added.steps)
        self.values.extend(added.values)
        self.stride = added.stride
        self.num_seen = added.num_seen
        if not len(self.steps) == len(self.values) == self._num_points(self.num_seen, self.stride):
            raise ValueError(
                f"{len(self.values)} points of {self.num_seen} values (every {self.stride}th is "
                "kept)"
            )

    @staticmethod
    def _num_points(num_seen: int, stride: int) -> int:
        return -(-num_seen // stride)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {"stride": self.stride, "num_seen": self.num_seen, **self.tensors()}

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the steps and the values, each copied as one block of memory, since there may
        be a million."""
        return {
            "steps": _copied(self.steps, torch.int64),
            "values": _copied(self.values, torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stride = state["stride"]
        self.num_seen = state["num_seen"]
        self.steps = _filled("q", state["steps"], torch.int64)
        self.values = _filled("d", state["values"], torch.float64)


def _copied(numbers: array[Any], dtype: torch.dtype) -> Tensor:
    return (
        torch.frombuffer(numbers, dtype=dtype).clone() if numbers else torch.empty(0, dtype=dtype)
    )


def _filled(code: str, tensor: Tensor, dtype: torch.dtype) -> array[Any]:
    if tensor.dtype != dtype or tensor.dim() != 1:
        raise TypeError(
            f"{tensor.dtype} of shape {tuple(tensor.shape)} in the place of a row of {dtype}"
        )
    numbers = array(code)
    # it takes buffers
    numbers.frombytes(tensor.cpu().contiguous().view(torch.uint8).numpy())  # type: ignore[arg-type]
    return numbers


@dataclass(frozen=True, slots=True)
class HistoryExtent:
    """The size of a history: the number of its epochs, and of the values that each series has
    seen."""

    num_epochs: int = 0
    num_seen: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Addition:
    """The part of a history beyond an extent, with the last row before it, since that may have been
    replaced."""

    first_epoch: int
    epochs: list[dict[str, float]]
    steps: dict[str, Series]

    @property
    def size(self) -> int:
        """Rows and points in it."""
        return len(self.epochs) + sum(map(len, self.steps.values()))


class History:
    """The metrics of a run: of epochs (`history["eval_loss"]`, `history.epochs`) and steps
    (`history.steps["loss"]`).

    It is read as a mapping of the epoch metrics: `for name, values in history.items()`,
    `list(history)` is the names, `dict(history)` a list of values per name. `len(history)` is the
    number of epochs, and `history.epochs` their rows.

    >>> import torch, loopwright
    >>> data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = loopwright.Trainer(model, optimizer, torch.nn.functional.mse_loss, progress="silent")
    >>> history = trainer.train(data, num_epochs=3, batch_size=4)
    >>> len(history), history.names, len(history["loss"])
    (3, ['loss'], 3)
    >>> list(history.steps["loss"].steps)
    [1, 2, 3, 4, 5, 6]
    >>> history.last("loss") < history["loss"][0]
    True
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.steps: dict[str, Series] = {}

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Record the metrics of steps, given in the order of their numbers."""
        points: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for name, value in row.values.items():
                points.setdefault(name, []).append((row.step, value))
        for name, added in points.items():
            self.add_points(name, added)

    def add_points(self, name: str, points: Iterable[tuple[int, float]]) -> None:
        """Record one metric of several steps, as (step, value) in the order of the steps."""
        self.steps.setdefault(name, Series()).add(points)

    def set_epoch(self, epoch: int, row: Mapping[str, float]) -> None:
        """Record the row of an epoch (0-based); the row of an epoch that was cut short is replaced
        when it ends."""
        if epoch < len(self.epochs) - 1:
            # a new list: more than its end is another now (see `since`)
            self.epochs = self.epochs[:epoch]
        del self.epochs[epoch:]
        self.epochs.append(dict(row))

    @property
    def extent(self) -> HistoryExtent:
        """The size of this history now, for `since`."""
        return HistoryExtent(
            len(self.epochs), {name: series.num_seen for name, series in self.steps.items()}
        )

    def since(self, extent: HistoryExtent) -> Addition:
        """The part after an earlier `extent`; `epochs` and `steps` have to be the same objects as
        then."""
        first = max(extent.num_epochs - 1, 0)
        steps = {
            name: series.since(extent.num_seen.get(name, 0)) for name, series in self.steps.items()
        }
        return Addition(first, [dict(row) for row in self.epochs[first:]], steps)

    def extend(self, added: Addition) -> None:
        """Append what `since` returned of a longer history."""
        if added.first_epoch > len(self.epochs):
            raise ValueError(
                f"rows from epoch {added.first_epoch + 1} on, after {len(self.epochs)} epochs"
            )
        self.epochs[added.first_epoch :] = added.epochs
        for name, series in added.steps.items():
            self.steps.setdefault(name, Series()).extend(series)

    @property
    def names(self) -> list[str]:
        """Names of the epoch metrics, in the order they first appeared."""
        return list(dict.fromkeys(name for row in self.epochs for name in row))

    def __getitem__(self, name: str) -> list[float]:
        values = [row[name] for row in self.epochs if name in row]
        if not values:
            raise self._unknown(name)
        return values

    def __contains__(self, name: object) -> bool:
        return any(name in row for row in reversed(self.epochs))

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def keys(self) -> KeysView[str]:
        """The names of the epoch metrics, so that `dict(history)` is `history.to_dict()`."""
        return self.to_dict().keys()

    def values(self) -> ValuesView[list[float]]:
        """One list per epoch metric, in the order of `names`."""
        return self.to_dict().values()

    def items(self) -> ItemsView[str, list[float]]:
        """Each epoch metric with its list of values."""
        return self.to_dict().items()

    def get(self, name: str, default: Any = None) -> Any:
        """The values of a metric, or the default where there is no metric of that name."""
        return self.to_dict().get(name, default)

    def last(self, name: str) -> float:
        """The latest value of an epoch metric; takes the same time however many epochs there
        are."""
        row = next((row for row in reversed(self.epochs) if name in row), None)
        if row is None:
            raise self._unknown(name)
        return row[name]

    def _unknown(self, name: str) -> KeyError:
        hint = "the rows of the epochs are in `history.epochs`."
        if isinstance(name, str):
            hint = nearest(name, self.names)
        return KeyError(f"The history has no metric {name!r}; {hint}")

    def to_dict(self) -> dict[str, list[float]]:
        """A list of values per epoch metric, by name."""
        return {name: self[name] for name in self.names}

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the curves: one panel per metric, a metric together with its `eval_` counterpart.

        Args:
            path: A file to write the figure to as well, in the format of its ending.

        Returns:
            The matplotlib figure, which a notebook shows as a picture.
        """
        try:
            from .plotting import plot_epochs
        except ImportError as error:
            raise MissingExtraError(
                "plots-extra", "A plot needs matplotlib: pip install 'loopwright[plots]'."
            ) from error
        return plot_epochs(self.epochs, self.steps, self.names, path)

    def state_dict(self) -> dict[str, Any]:
        return {
            "epochs": [dict(row) for row in self.epochs],
            "steps": {name: series.state_dict() for name, series in self.steps.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epochs = [dict(row) for row in state["epochs"]]
        self.steps = {}
        for name, saved in state["steps"].items():
            self.steps[name] = Series()
            self.steps[name].load_state_dict(saved)

    @property
    def identity(self) -> tuple[object, object]:
        """The objects that stay the same while this history only grows at its end (see `since`)."""
        return (self.epochs, self.steps)

    def __repr__(self) -> str:
        latest = "empty"
        if self.epochs:
            latest = ", ".join(f"{name} {value:.4g}" for name, value in self.epochs[-1].items())
        return f"History({counted(len(self.epochs), 'epoch')}; {latest})"

    def _repr_html_(self) -> str:
        """The table of epochs, for notebooks."""
        from .html import history_html

        return history_html(self.epochs, self.names)


def is_same(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether two sequences consist of the same objects, not only of equal ones."""
    return len(first) == len(second) and all(
        one is other for one, other in zip(first, second, strict=True)
    )
