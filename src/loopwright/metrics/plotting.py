"""Curves of a history as a matplotlib figure, which a notebook shows as a picture. Imported with
matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure

DPI = 120


class Plot(Figure):
    """A figure that a notebook shows as a picture, whether or not pyplot is in use."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=DPI)
        return content.getvalue()


Epochs: TypeAlias = Sequence[Mapping[str, float]]


def plot_epochs(
    epochs: Epochs, steps: Mapping[str, Any], names: Sequence[str], path: str | Path | None = None
) -> Plot:
    """One panel per metric, a metric together with its `eval_` counterpart; the step values lie
    faintly behind."""
    panels: dict[str, list[str]] = {}
    for name in names:
        panels.setdefault(name.removeprefix("eval_"), []).append(name)
    figure = Plot(figsize=(5 * len(panels), 3.6), layout="constrained")
    for axis, (title, group) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw(axis, epochs, steps.get(title), title, group)
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _draw(axis: Any, epochs: Epochs, series: Any, title: str, group: Sequence[str]) -> None:
    total = len(epochs)
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
        points = [(at, row[name]) for at, row in enumerate(epochs, start=1) if name in row]
        axis.plot(*zip(*points, strict=True), marker="o", ms=3, label=name)
    axis.set(title=title, xlabel="epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
