"""What a run measured: one row per epoch, and a bounded series per step metric."""

from __future__ import annotations

import difflib
from array import array
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .errors import ConfigurationError, MissingExtraError
from .progress import counted

if TYPE_CHECKING:
    import pandas as pd

MAX_POINTS = 1 << 17


class Series:
    """The values of one step metric. Past `MAX_POINTS`, every second point is dropped, so memory stays flat."""

    __slots__ = ("num_seen", "steps", "stride", "values")

    def __init__(self) -> None:
        self.steps = array("q")
        self.values = array("d")
        self.stride = 1
        self.num_seen = 0

    def append(self, step: int, value: float) -> None:
        is_kept = self.num_seen % self.stride == 0
        self.num_seen += 1
        if not is_kept:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) >= MAX_POINTS:
            self.stride *= 2
            self.steps, self.values = self.steps[::2], self.values[::2]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "num_seen": self.num_seen,
            "steps": torch.tensor(self.steps, dtype=torch.int64),
            "values": torch.tensor(self.values, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stride, self.num_seen = state["stride"], state["num_seen"]
        self.steps = array("q", state["steps"].tolist())
        self.values = array("d", state["values"].tolist())


class History:
    """Epoch rows (`history.epochs`, `history["eval_loss"]`) and step series (`history.steps["loss"]`).

    It is iterated as a mapping of epoch metrics: `for name, values in history.items()`, `list(history)` is the names,
    `dict(history)` all of it. `len(history)` is the number of epochs, and `history.epochs` their rows.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.steps: dict[str, Series] = {}

    def add_steps(self, first_step: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Record the metrics of consecutive steps, the first of them numbered `first_step`."""
        for step, row in enumerate(rows, start=first_step):
            for name, value in row.items():
                series = self.steps.get(name)
                if series is None:
                    series = self.steps[name] = Series()
                series.append(step, value)

    def set_epoch(self, epoch: int, row: Mapping[str, float]) -> None:
        """Record the row of an epoch (0-based); the row of an epoch that was cut short is replaced when it ends."""
        del self.epochs[epoch:]
        self.epochs.append(dict(row))

    @property
    def names(self) -> list[str]:
        """Names of the epoch metrics, in the order they first appeared."""
        return list(dict.fromkeys(name for row in self.epochs for name in row))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            near = difflib.get_close_matches(str(name), self.names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            hint = hint if isinstance(name, str) else " The rows of epochs are in `history.epochs`."
            raise KeyError(
                f"No metric {name!r} in this history; there is: {', '.join(self.names) or 'nothing yet'}.{hint}"
            )
        return [row[name] for row in self.epochs if name in row]

    def __contains__(self, name: object) -> bool:
        return name in self.names

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
        return self[name][-1]

    def to_dict(self) -> dict[str, list[float]]:
        """One list per epoch metric."""
        return {name: self[name] for name in self.names}

    def to_frame(self, level: str = "epochs") -> pd.DataFrame:
        """A pandas frame of the epochs, or (`level="steps"`) of the steps."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("A history as a frame needs pandas: pip install 'loopwright[frames]'.") from error
        if level == "epochs":
            return pd.DataFrame(self.epochs, index=pd.RangeIndex(1, len(self.epochs) + 1, name="epoch"))
        if level != "steps":
            raise ConfigurationError(f"Unknown level {level!r}: use 'epochs' or 'steps'.")
        columns = {name: pd.Series(list(s.values), index=list(s.steps)) for name, s in self.steps.items()}
        return pd.DataFrame(columns).rename_axis("step")

    def plot(self, path: str | Path | None = None, names: Sequence[str] | None = None) -> Any:
        """A matplotlib figure of the curves, written to `path` when one is given."""
        from .plots import plot_history

        return plot_history(self, path, names)

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

    def __repr__(self) -> str:
        latest = ", ".join(f"{name} {value:.4g}" for name, value in self.epochs[-1].items()) if self.epochs else "empty"
        return f"History({counted(len(self.epochs), 'epoch')}; {latest})"
