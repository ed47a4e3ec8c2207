"""Curves of a history as a matplotlib figure, which a notebook shows as a picture. Imported with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from .history import History

DPI = 120


class Plot(Figure):
    """A figure that a notebook shows as a picture, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=DPI)
        return content.getvalue()


def plot_history(history: History, path: str | Path | None = None, names: Sequence[str] | None = None) -> Plot:
    """One panel per metric, a metric together with its `eval_` counterpart; the step values lie faintly behind."""
    names = list(names) if names is not None else history.names
    unknown = [name for name in names if name not in history]
    if unknown or not names:
        what = ", ".join(unknown) or "an empty history"
        raise ConfigurationError(f"Cannot plot {what}; there is: {', '.join(history.names) or 'nothing'}.")
    panels: dict[str, list[str]] = {}
    for name in names:
        panels.setdefault(name.removeprefix("eval_"), []).append(name)
    figure = Plot(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axis, (title, group) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw(axis, history, title, group)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _draw(axis: Any, history: History, title: str, group: Sequence[str]) -> None:
    series = history.steps.get(title)
    total = len(history.epochs)
    if series is not None and title in group and len(series) > total:
        last = series.steps[-1]
        axis.plot(
            [step / last * total for step in series.steps],
            list(series),
            color="0.8",
            lw=0.7,
            label="each step",
        )
    for name in group:
        points = [(at, row[name]) for at, row in enumerate(history.epochs, start=1) if name in row]
        axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=name)
    axis.set(title=title, xlabel="epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
