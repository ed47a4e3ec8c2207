"""`loopwright plot [RUN ...]`: curves of one or several runs in a picture, or in the terminal.

A chart in the terminal has braille dots, eight to a character.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ..errors import ConfigurationError, MissingExtraError
from ..metrics.best import by_importance
from ..run.curves import MetricCurve
from ..run.reading import Run
from ..run.schema import Level
from .output import OK, check_output, has_colours, number_text, printable, say
from .selection import find_run, short_path

FORMATS = (".png", ".svg", ".pdf")
HEIGHT = 18  # lines of a chart in the terminal
MOST_WIDE = 120
FEW = 50  # points that are marked one by one
POINTS = 2000  # columns of a picture
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of braille, by row and column
BRAILLE = 0x2800
STYLES = ("cyan", "yellow", "magenta", "green", "red", "blue")
LEAST_WIDE = 12  # columns of the drawing itself

Curves = dict[str, MetricCurve]  # the curves of a chart by their labels


def plot_command(options: argparse.Namespace) -> int:
    runs = {run.path: run for run in (find_run(name, options.root) for name in options.names)}
    names = {short_path(run, options.root): run for run in runs.values()}
    metrics = options.metric or main_metrics(list(names.values()))
    groups = [metrics]
    if options.metric:
        groups = [[name] for name in options.metric]
    panels = [collect(names, group, is_chosen=bool(options.metric)) for group in groups]
    if options.text:
        width = min(shutil.get_terminal_size().columns, MOST_WIDE)
        console = Console(highlight=False, no_color=not has_colours(), width=width)
        for curves in panels:
            for title, drawn in charts_of(curves):
                lines = chart_lines(title, drawn, width, HEIGHT, is_log=options.log)
                console.print(*lines, sep="\n")
        return OK
    plain = re.sub(r"[^\w.-]+", "-", "+".join(group[0] for group in groups)).strip("-.")
    path = Path(options.output or f"{plain}.png")
    check_output(path, force=True, suffixes=FORMATS)
    draw_picture(path, panels, is_log=options.log)
    whose = next(iter(names)) if len(names) == 1 else f"{len(names)} runs"
    say(f"{', '.join(metrics)} of {whose}: {path}")
    return OK


def main_metrics(runs: Sequence[Run]) -> list[str]:
    """The loss and its evaluations; of runs without a loss, the group of their most important
    metric."""
    names = dict.fromkeys(name for run in runs for name in run.metrics.names())
    groups = metric_groups(names, [key for run in runs for key in run.eval_keys])
    return next((group for group in groups if group[0] == "loss"), groups[0] if groups else [])


def metric_groups(names: Iterable[str], eval_keys: Sequence[str]) -> list[list[str]]:
    """The metrics that share a chart: one, with its values in evaluations; the most important group
    first."""
    known = list(names)
    prefixes = [f"{key}_" for key in ("eval", *eval_keys)]
    groups: dict[str, list[str]] = {}
    for name in by_importance(known, eval_keys):
        stems = [name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)]
        stem = next((stem for stem in stems if stem in known), name)
        groups.setdefault(stem, []).append(name)
    return [sorted(group, key=lambda name: name != stem) for stem, group in groups.items()]


def collect(runs: dict[str, Run], metrics: Sequence[str], *, is_chosen: bool) -> Curves:
    """The curves of a panel; a metric that was chosen and is missing is an error."""
    curves = {}
    for label, run in runs.items():
        for name in metrics:
            if name not in run.metrics.names():
                if is_chosen:
                    raise run.metrics.missing(name)
                continue
            curves[f"{label} {name}"] = curve_of(run, name, POINTS)
    if not curves:
        raise ConfigurationError(
            "nothing-to-draw",
            f"There is nothing to draw yet: {', '.join(runs)} has not logged any metrics.",
        )
    return curves


def curve_of(run: Run, name: str, points: int) -> MetricCurve:
    """A metric along the updates: of steps, where it was measured in steps."""
    level: Level = "step" if name in run.step_names else "epoch"
    return run.metrics.curve(name, level=level, x="update", points=points)


# Pictures


def draw_picture(path: Path, panels: Sequence[Curves], *, is_log: bool) -> None:
    """Draw one panel beside the other, with a curve for each run and metric."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "picture-extra",
            "A picture needs matplotlib: pip install 'loopwright[plots]'. (--text draws without "
            "it.)",
        ) from error
    figure = Figure(figsize=(max(5.5 * len(panels), 7.0), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, curves in zip(axes, panels, strict=True):
        for label, curve in curves.items():
            axis.plot(
                curve.places,
                curve.mean,
                marker="o" if len(curve.mean) <= FEW else None,
                markersize=3,
                linewidth=1.4,
                label=_plain(f"{label}  {number_text(curve.mean[-1])}"),
            )
        axis.set(xlabel="update", ylabel=_plain(next(iter(curves.values())).name))
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize="small")
        if is_log:
            axis.set_yscale("log")
    figure.savefig(path, dpi=120)


def _plain(text: str) -> str:
    """Escape text for matplotlib: a dollar sign would begin a formula, an underscore hide a
    label."""
    return printable(text).replace("$", r"\$").removeprefix("_")


# Charts in the terminal


def charts_of(
    curves: Curves, note: Callable[[MetricCurve], str] = lambda curve: ""
) -> list[tuple[Text, list[MetricCurve]]]:
    """The charts of some curves, with their titles: one, or one for each where colours do not tell
    curves apart. `note` returns more to say about a curve."""
    titles = []
    for number, (label, curve) in enumerate(curves.items()):
        title = Text(printable(label), style=f"bold {style_of(number)}")
        last = f" {curve.mean[-1]:.4g}" if curve.mean else ": no value yet"
        odd = sum(curve.nonfinite)
        text = last + note(curve) + (f" ({odd} not finite)" if odd else "")
        titles.append(title.append(text, style="not bold"))
    if has_colours():
        return [(Text("  ").join(titles), list(curves.values()))]
    return [(title, [curve]) for title, curve in zip(titles, curves.values(), strict=True)]


def style_of(number: int) -> str:
    """The colour of a curve, by its number."""
    return STYLES[number % len(STYLES)]


class Canvas:
    """Dots in a grid of characters; a character has the style of the dot that was set last."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._bits: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        """Set the dots between two places; y goes down."""
        left, top = start
        across = end[0] - left
        down = end[1] - top
        steps = max(abs(across), abs(down), 1)
        for at in range(steps + 1):
            x = left + round(across * at / steps)
            y = top + round(down * at / steps)
            cell = (y // 4, x // 2)
            self._bits[cell] = self._bits.get(cell, 0) | DOTS[y % 4][x % 2]
            self._styles[cell] = style

    def add_row(self, number: int, line: Text) -> None:
        """Append the characters of a row."""
        for column in range(self.columns):
            bits = self._bits.get((number, column), 0)
            character = chr(BRAILLE + bits) if bits else " "
            line.append(character, style=self._styles.get((number, column), ""))


def chart_lines(
    title: Text, curves: Sequence[MetricCurve], width: int, height: int, *, is_log: bool = False
) -> list[Text]:
    """The lines of a chart: the title, the drawing with its scale, and the ends of the axis.

    Values that are not finite, or not above 0 on a logarithmic scale, leave a gap.
    """
    scaled = [_scaled(curve, is_log=is_log) for curve in curves]
    heights = np.concatenate([values.ravel() for values in scaled])
    if np.isnan(heights).all():
        return [title, Text("no value that can be drawn", style="dim")]
    low = float(np.nanmin(heights))
    high = float(np.nanmax(heights))
    places = np.concatenate([np.asarray(curve.places) for curve in curves])
    first = float(places.min())
    last = float(places.max())
    rows = max(height - 3, 1)
    labels = _labels(low, high, rows, is_log=is_log)
    gutter = max(map(len, labels.values()))
    canvas = Canvas(max(width - gutter - 2, LEAST_WIDE), rows)
    for number, (curve, values) in enumerate(zip(curves, scaled, strict=True)):
        across = _dots(np.asarray(curve.places, float), first, last, 2 * canvas.columns)
        down = _dots(-values, -high, -low, 4 * rows)
        _draw(canvas, across, down, style_of(number))
    lines = [title]
    for number in range(rows):
        line = Text()
        line.append(f"{labels.get(number, ''):>{gutter}} ┤", style="dim")
        canvas.add_row(number, line)
        lines.append(line)
    left = f"{first:,.0f}"
    right = f"{last:,.0f}"
    space = max(canvas.columns - len(left) - len(right), 0)
    lines.append(Text(f"{'':>{gutter}} └{'─' * canvas.columns}", style="dim"))
    middle = "update".center(space)[:space]
    lines.append(Text(f"{'':>{gutter}}  {left}{middle}{right}", style="dim"))
    for line in lines:
        line.no_wrap = True
        line.rstrip()
    return lines


def _scaled(curve: MetricCurve, *, is_log: bool) -> Any:
    """Values, lows and highs in the scale of the chart; NaN for points that cannot be drawn."""
    values = np.array([curve.mean, curve.min, curve.max], float)
    if is_log:
        values = np.log10(np.where(values > 0, values, np.nan))
    return np.where(np.isfinite(values).all(axis=0), values, np.nan)


def _dots(values: Any, first: float, last: float, count: int) -> Any:
    """The numbers of the dots between the first and the last; the middle where these are equal."""
    share = np.where(np.isnan(values), values, 0.5)
    if last > first:
        share = (values - first) / (last - first)
    return np.rint(share * (count - 1))


def _labels(low: float, high: float, rows: int, *, is_log: bool) -> dict[int, str]:
    values = {0: high, rows - 1: low}
    middle = (rows - 1) // 2
    if rows >= 5 and high > low:
        values[middle] = high - (high - low) * middle / (rows - 1)
    return {row: f"{10**value if is_log else value:.4g}" for row, value in values.items()}


def _draw(canvas: Canvas, across: Any, down: Any, style: str) -> None:
    """Draw the range of each point, then a line through the values."""
    points: list[tuple[int, int] | None] = []
    for x, y, bottom, top in zip(across, *down, strict=True):
        if np.isnan(y):
            points.append(None)
            continue
        points.append((int(x), int(y)))
        if top < bottom:
            canvas.line((int(x), int(top)), (int(x), int(bottom)), f"dim {style}")
    before = None
    for point in points:
        if point is not None:
            canvas.line(before or point, point, style)
        before = point
