"""`loopwright plot [RUN ...]`: curves of one or several runs in a picture, or in the terminal.

A chart in characters has braille dots, eight to a character, or ASCII where a terminal has no others.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConfigurationError, MissingExtraError, check_number
from ..metrics.best import by_importance
from ..run.reading import Run
from .output import OK, check_output, has_colours, number_text, print_json, printable, say
from .selection import find_run, short_path

Line: TypeAlias = list[tuple[str, str]]  # pieces of text, each with its style in the words of rich
Pen: TypeAlias = tuple[str, str]  # the style of a curve, and its character in ASCII

FORMATS = (".png", ".svg", ".pdf")
HEIGHT = 18  # lines of a chart in characters
MOST_WIDE = 120
FEW = 50  # points that are marked one by one
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of braille, by row and column
BRAILLE = 0x2800
STYLES = ("cyan", "yellow", "magenta", "green", "red", "blue")
MARKS = "*o+x#@%&"  # of curves in ASCII
LEAST_WIDE = 12  # columns of the drawing itself


@dataclass(frozen=True, slots=True)
class PlottedCurve:
    """Values of a metric of one run along its epochs, steps or updates."""

    label: str
    metric: str
    along: str
    places: tuple[int, ...]
    values: tuple[float, ...]


def plot_command(options: argparse.Namespace) -> int:
    check_number("--smooth", options.smooth, least=1)
    found = {run.path: run for run in (find_run(name, options.root) for name in options.names)}
    runs = list(found.values())
    groups = [[name] for name in dict.fromkeys(options.metric or ())] or [main_metrics(runs)]
    panels = [collect(runs, names, options) for names in groups]
    for curves in [] if options.json else panels:
        check_drawable(curves, is_log=options.log)
    metrics: dict[str, list[PlottedCurve]] = {}
    for curve in (curve for curves in panels for curve in curves):
        metrics.setdefault(curve.metric, []).append(curve)
    if options.json:
        keys = ("label", "along", "places", "values")
        tables = {
            name: [{key: getattr(curve, key) for key in keys} for curve in curves]
            for name, curves in metrics.items()
        }
        print_json(tables)
    elif options.text:
        for curves in panels:
            print_chart(curves, is_log=options.log)
    else:
        names = "+".join(curves[0].metric for curves in panels)
        path = Path(options.output or re.sub(r"[^\w.-]+", "-", names).strip("-.") + ".png")
        check_output(path, force=True, suffixes=FORMATS)
        draw_picture(path, panels, is_log=options.log)
        whose = short_path(runs[0], options.root) if len(runs) == 1 else f"{len(runs)} runs"
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


def collect(
    runs: Sequence[Run], names: Sequence[str], options: argparse.Namespace
) -> list[PlottedCurve]:
    """The curves of a panel, all along one axis; a metric that was chosen and is missing is an
    error."""
    pairs = [(run, name) for run in runs for name in names]
    if not options.metric:
        pairs = [(run, name) for run, name in pairs if name in run.metrics.names()]
    along = options.by or _axis(pairs)
    curves = []
    for run, name in pairs:
        points = run.metrics.epochs(name) if along == "epochs" else run.metrics.steps(name)
        if along == "updates" and not points:
            points = run.metrics.epochs(name)
        if not points and options.metric:
            raise run.metrics.missing(name, options.by and options.by.removesuffix("s"))
        places = tuple(point.update if along == "updates" else point.at for point in points)
        values = _smoothed([point.value for point in points], options.smooth)
        if points:
            curves.append(PlottedCurve(short_path(run, options.root), name, along, places, values))
    if not curves:
        listed = ", ".join(short_path(run, options.root) for run in runs)
        raise ConfigurationError(
            "nothing-to-draw",
            f"There is nothing to draw yet: {listed} has not logged any metrics per "
            f"{along.removesuffix('s')}.",
        )
    return curves


def check_drawable(curves: Sequence[PlottedCurve], *, is_log: bool) -> None:
    """Refuse a panel that would be empty."""
    values = [value for curve in curves for value in curve.values]
    if not any(isfinite(value) and (value > 0 or not is_log) for value in values):
        needs = "finite and above 0, as --log needs" if is_log else "finite"
        raise ConfigurationError(
            "nothing-to-draw",
            f"There is nothing to draw: no value of {curves[0].metric} is {needs}.",
        )


def _axis(pairs: Sequence[tuple[Run, str]]) -> str:
    """Epochs, once every curve has two; before that steps, or updates where some metrics are of
    epochs only."""
    epochs = [len(run.metrics.epochs(name)) for run, name in pairs]
    steps = [len(run.metrics.steps(name)) for run, name in pairs]
    if min(epochs, default=0) >= 2 or not any(steps):
        return "epochs"
    return "steps" if all(steps) else "updates"


def _smoothed(values: Sequence[float], window: int) -> tuple[float, ...]:
    """Moving averages over `window` values; the first ones over the values so far."""
    if window == 1:
        return tuple(values)
    parts = [values[max(end - window, 0) : end] for end in range(1, len(values) + 1)]
    return tuple(sum(part) / len(part) for part in parts)


def curve_names(curves: Sequence[PlottedCurve]) -> list[str]:
    """What tells the curves of a panel apart: the run, the metric, or both."""
    if len({curve.metric for curve in curves}) == 1:
        return [curve.label for curve in curves]
    if len({curve.label for curve in curves}) == 1:
        return [curve.metric for curve in curves]
    return [f"{curve.label} {curve.metric}" for curve in curves]


# Pictures


def draw_picture(path: Path, panels: Sequence[Sequence[PlottedCurve]], *, is_log: bool) -> None:
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
        _draw_panel(axis, curves)
        if is_log:
            axis.set_yscale("log")
    figure.savefig(path, dpi=120)


def _draw_panel(axis: Any, curves: Sequence[PlottedCurve]) -> None:
    """Runs have colours, and metrics of several runs have line styles; the axes are named."""
    runs = list(dict.fromkeys(curve.label for curve in curves))
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    for curve, label in zip(curves, curve_names(curves), strict=True):
        colour = metrics.index(curve.metric)
        style = "-"
        if len(runs) > 1:
            style = ("-", "--", ":", "-.")[colour % 4]
            colour = runs.index(curve.label)
        axis.plot(
            curve.places,
            curve.values,
            color=f"C{colour % 10}",
            linestyle=style,
            marker="o" if len(curve.values) <= FEW else None,
            markersize=3,
            linewidth=1.4,
            label=_plain(f"{label}  {number_text(curve.values[-1])}"),
        )
    title = runs[0] if len(runs) == 1 else metrics[0]
    axis.set(title=_plain(title), xlabel=curves[0].along.removesuffix("s"))
    axis.set_ylabel(_plain(metrics[0]))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize="small")


def _plain(text: str) -> str:
    """Escape text for matplotlib: a dollar sign would begin a formula, an underscore hide a
    label."""
    return printable(text).replace("$", r"\$").removeprefix("_")


# Text


def print_chart(curves: Sequence[PlottedCurve], *, is_log: bool) -> None:
    """Print a chart as wide as the terminal, in colours where it has some."""
    width = min(shutil.get_terminal_size().columns, MOST_WIDE)
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    # without colours, only characters tell curves apart
    is_plain = not is_unicode or (len(curves) > 1 and not has_colours())
    lines = draw_text(curves, width, is_log=is_log, is_plain=is_plain)
    if not has_colours():
        print("\n".join("".join(text for text, _ in line).rstrip() for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    texts = (Text.assemble(*line, no_wrap=True) for line in lines)
    Console(highlight=False).print(*texts, sep="\n")


def draw_text(
    curves: Sequence[PlottedCurve], width: int, *, is_log: bool = False, is_plain: bool = False
) -> list[Line]:
    """The lines of a chart with its legend."""
    metrics = ", ".join(dict.fromkeys(curve.metric for curve in curves))
    title: Line = [(printable(metrics), "bold"), (", logarithmic" if is_log else "", "")]
    drawn = [Drawn(curve.places, curve.values, curve.values, curve.values) for curve in curves]
    along = curves[0].along.removesuffix("s")
    lines = chart_lines(title, drawn, along, width, HEIGHT, is_log=is_log, is_plain=is_plain)
    for number, (curve, name) in enumerate(zip(curves, curve_names(curves), strict=True)):
        style, mark = pen_of(number)
        left_out = sum(not np.isfinite(value) or (is_log and value <= 0) for value in curve.values)
        why = "not finite or not above 0" if is_log else "not finite"
        more = f" ({left_out} not drawn: {why})" if left_out else ""
        text = printable(f"{name}: {curve.values[-1]:.6g}{more}")
        lines.append([(f"  {mark if is_plain else '─'} ", style), (text, "")])
    return lines


@dataclass(frozen=True, slots=True)
class Drawn:
    """One curve of a chart: values along an axis, each with the smallest and largest value that it
    stands for."""

    places: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]


@dataclass(slots=True)
class Canvas:
    """Dots in a grid of characters; a character has the style of the dot that was set last."""

    columns: int
    rows: int
    bits: dict[tuple[int, int], int] = field(default_factory=dict)
    pens: dict[tuple[int, int], Pen] = field(default_factory=dict)

    def line(self, start: tuple[int, int], end: tuple[int, int], pen: Pen) -> None:
        """Set the dots between two places; y goes down."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for at in range(steps + 1):
            x = start[0] + round((end[0] - start[0]) * at / steps)
            y = start[1] + round((end[1] - start[1]) * at / steps)
            cell = (y // 4, x // 2)
            self.bits[cell] = self.bits.get(cell, 0) | DOTS[y % 4][x % 2]
            self.pens[cell] = pen

    def row(self, number: int, *, is_plain: bool) -> Iterator[tuple[str, str]]:
        """The characters of a row with their styles."""
        for column in range(self.columns):
            bits = self.bits.get((number, column), 0)
            style, mark = self.pens.get((number, column), ("", " "))
            yield mark if is_plain or not bits else chr(BRAILLE + bits), style


def pen_of(number: int) -> Pen:
    """The style and the ASCII character of a curve, by its number."""
    return STYLES[number % len(STYLES)], MARKS[number % len(MARKS)]


def chart_lines(
    title: Line,
    curves: Sequence[Drawn],
    along: str,
    width: int,
    height: int,
    *,
    is_log: bool = False,
    is_plain: bool = False,
) -> list[Line]:
    """The lines of a chart: the title, the drawing with its scale, and the ends of the axis.

    Values that are not finite, or not above 0 on a logarithmic scale, leave a gap.
    """
    scaled = [_scaled(curve, is_log=is_log) for curve in curves]
    heights = np.concatenate([values.ravel() for values in scaled])
    if np.isnan(heights).all():
        return [title, *([[("no value that can be drawn", "dim")]] if len(heights) else [])]
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
        _draw(canvas, across, down, pen_of(number))
    corner, side, dash = "+|-" if is_plain else "└┤─"
    drawn: list[Line] = [title]
    for number in range(rows):
        label = (f"{labels.get(number, ''):>{gutter}} {side}", "dim")
        drawn.append([label, *canvas.row(number, is_plain=is_plain)])
    left = f"{first:,.0f}"
    right = f"{last:,.0f}"
    space = max(canvas.columns - len(left) - len(right), 0)
    ends = f"{'':>{gutter}}  {left}{along.center(space)[:space]}{right}"
    axis = f"{'':>{gutter}} {corner}{dash * canvas.columns}"
    return [*drawn, [(axis, "dim")], [(ends, "dim")]]


def _scaled(curve: Drawn, *, is_log: bool) -> Any:
    """Values, lows and highs in the scale of the chart; NaN for points that cannot be drawn."""
    values = np.array([curve.values, curve.lows, curve.highs], float)
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


def _draw(canvas: Canvas, across: Any, down: Any, pen: Pen) -> None:
    """Draw the range of each point, then a line through the values."""
    points = [
        None if np.isnan(y) else (int(x), int(y), int(bottom), int(top))
        for x, y, bottom, top in zip(across, *down, strict=True)
    ]
    for x, _, bottom, top in filter(None, points):
        if top < bottom:
            canvas.line((x, top), (x, bottom), (f"dim {pen[0]}", pen[1]))
    before = None
    for point in points:
        if point is not None:
            canvas.line((before or point)[:2], point[:2], pen)
        before = point
