"""`loopwright plot [RUN ...]`: curves of one or several runs in a picture, or in the terminal."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, MissingExtraError, check_number
from ..run.reading import Run
from .charts import Chart, Drawn, Line, metric_groups, pen_of
from .exits import OK, check_output
from .output import has_colours, number_text, print_json, printable
from .selection import find_run, short_path

FORMATS = (".png", ".svg", ".pdf")
HEIGHT = 18  # lines of a chart in characters
MOST_WIDE = 120
FEW = 50  # points that are marked one by one


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
    groups = (
        [[name] for name in dict.fromkeys(options.metric)]
        if options.metric
        else [main_metrics(runs, options)]
    )
    panels = {
        names[0]: collect(
            runs, names, options.by, options.smooth, options.root, is_chosen=bool(options.metric)
        )
        for names in groups
    }
    if options.json:
        every = [curve for curves in panels.values() for curve in curves]
        print_json(
            {
                name: [_as_json(curve) for curve in every if curve.metric == name]
                for name in dict.fromkeys(curve.metric for curve in every)
            }
        )
    elif options.text:
        for curves in panels.values():
            print_chart(curves, is_log=options.log)
    else:
        _write_picture(panels, runs, options)
    return OK


def main_metrics(runs: Sequence[Run], options: argparse.Namespace) -> list[str]:
    """The loss and its evaluations; of runs without a loss, the group of their most important
    metric."""
    names = dict.fromkeys(name for run in runs for name in run.metrics.names())
    if not names:
        listed = ", ".join(short_path(run, options.root) for run in runs)
        raise ConfigurationError(
            "nothing-to-draw", f"There is nothing to draw yet: {listed} has not logged any metrics."
        )
    groups = metric_groups(names, [key for run in runs for key in run.eval_keys])
    return next((group for group in groups if group[0] == "loss"), groups[0])


def collect(
    runs: Sequence[Run],
    names: Sequence[str],
    by: str | None,
    smooth: int,
    root: str,
    *,
    is_chosen: bool = True,
) -> list[PlottedCurve]:
    """The curves of a panel, all along one axis; a metric that was chosen and is missing is an
    error."""
    pairs = [
        (run, name) for run in runs for name in names if is_chosen or name in run.metrics.names()
    ]
    along = by or _axis(pairs)
    curves = []
    for run, name in pairs:
        points = run.metrics.epochs(name) if along == "epochs" else run.metrics.steps(name)
        if along == "updates" and not points:
            points = run.metrics.epochs(name)
        if not points and is_chosen:
            raise run.metrics.missing(name, None if by is None else by.removesuffix("s"))
        places = tuple(point.update if along == "updates" else point.at for point in points)
        values = tuple(_smoothed([point.value for point in points], smooth))
        curves += (
            [PlottedCurve(short_path(run, root), name, along, places, values)] if points else []
        )
    if not curves:
        raise ConfigurationError(
            "nothing-along-axis", f"There is nothing to draw over {along}: use another --by."
        )
    return curves


def _axis(pairs: Sequence[tuple[Run, str]]) -> str:
    """Epochs, once every curve has two; before that steps, or updates where some metrics are of
    epochs only."""
    epochs = [len(run.metrics.epochs(name)) for run, name in pairs]
    steps = [len(run.metrics.steps(name)) for run, name in pairs]
    if min(epochs) >= 2 or not any(steps):
        return "epochs"
    return "steps" if all(steps) else "updates"


def _smoothed(values: Sequence[float], window: int) -> list[float]:
    """Moving averages over `window` values; the first ones over the values so far."""
    if window == 1:
        return list(values)
    return [
        sum(part) / len(part)
        for end in range(1, len(values) + 1)
        if (part := values[max(end - window, 0) : end])
    ]


def _as_json(curve: PlottedCurve) -> dict[str, Any]:
    return {
        "label": curve.label,
        "along": curve.along,
        "places": curve.places,
        "values": curve.values,
    }


def curve_names(curves: Sequence[PlottedCurve]) -> list[str]:
    """What tells the curves of a panel apart: the run, the metric, or both."""
    has_runs, has_metrics = (
        len({getattr(curve, key) for curve in curves}) > 1 for key in ("label", "metric")
    )
    if has_runs and has_metrics:
        return [f"{curve.label} {curve.metric}" for curve in curves]
    return [curve.metric if has_metrics else curve.label for curve in curves]


# Pictures


def _write_picture(
    panels: dict[str, list[PlottedCurve]], runs: Sequence[Run], options: argparse.Namespace
) -> None:
    path = Path(options.output or re.sub(r"[^\w.-]+", "-", "+".join(panels)).strip("-.") + ".png")
    check_output(path, force=True, suffixes=FORMATS)
    draw_picture(path, panels, is_log=options.log)
    names = dict.fromkeys(curve.metric for curves in panels.values() for curve in curves)
    whose = short_path(runs[0], options.root) if len(runs) == 1 else f"{len(runs)} runs"
    print(printable(f"{', '.join(names)} of {whose}: {path}"))


def draw_picture(path: Path, panels: dict[str, list[PlottedCurve]], *, is_log: bool) -> None:
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
    for axis, (name, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw_panel(axis, name, curves)
        if is_log:
            axis.set_yscale("log")
    figure.savefig(path, dpi=120)


def _draw_panel(axis: Any, name: str, curves: Sequence[PlottedCurve]) -> None:
    """Runs have colours, and metrics of several runs have line styles; the axes are named."""
    runs = list(dict.fromkeys(c.label for c in curves))
    metrics = list(dict.fromkeys(c.metric for c in curves))
    for curve, label in zip(curves, curve_names(curves), strict=True):
        colour = runs.index(curve.label) if len(runs) > 1 else metrics.index(curve.metric)
        axis.plot(
            curve.places,
            curve.values,
            color=f"C{colour % 10}",
            linestyle=("-", "--", ":", "-.")[metrics.index(curve.metric) % 4]
            if len(runs) > 1
            else "-",
            marker="o" if len(curve.values) <= FEW else None,
            markersize=3,
            linewidth=1.4,
            label=_plain(f"{label}  {number_text(curve.values[-1])}"),
        )
    axis.set(
        title=_plain(runs[0] if len(runs) == 1 else name), xlabel=curves[0].along.removesuffix("s")
    )
    axis.set_ylabel(_plain(name))
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
    lines = draw_text(curves, width, is_log=is_log, is_plain=_is_plain(len(curves)))
    if not has_colours():
        print("\n".join("".join(text for text, _ in line).rstrip() for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(
        *(Text.assemble(*line, no_wrap=True) for line in lines), sep="\n"
    )


def _is_plain(num_curves: int) -> bool:
    """Whether to draw in ASCII: where a terminal has nothing else, or only characters tell curves
    apart."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return not is_unicode or (num_curves > 1 and not has_colours())


def draw_text(
    curves: Sequence[PlottedCurve], width: int, *, is_log: bool = False, is_plain: bool = False
) -> list[Line]:
    """The lines of a chart with its legend; an error where no value can be drawn."""
    metrics = list(dict.fromkeys(curve.metric for curve in curves))
    if not any(_is_drawn(value, is_log) for curve in curves for value in curve.values):
        which = "finite and above 0" if is_log else "finite"
        raise ConfigurationError(
            "no-drawable-value", f"No value of {', '.join(metrics)} can be drawn: none is {which}."
        )
    drawn = [
        Drawn(curve.metric, curve.places, curve.values, curve.values, curve.values)
        for curve in curves
    ]
    title: Line = [(printable(", ".join(metrics)), "bold"), (", logarithmic" if is_log else "", "")]
    along = curves[0].along.removesuffix("s")
    chart = Chart(title, drawn, along, is_log=is_log, is_plain=is_plain)
    return [*chart.lines(width, HEIGHT), *_legend(curves, is_log=is_log, is_plain=is_plain)]


def _legend(curves: Sequence[PlottedCurve], *, is_log: bool, is_plain: bool) -> Iterator[Line]:
    for number, (curve, name) in enumerate(zip(curves, curve_names(curves), strict=True)):
        style, mark = pen_of(number)
        left_out = sum(not _is_drawn(value, is_log) for value in curve.values)
        more = (
            f" ({left_out} not drawn: not finite{' or not above 0' if is_log else ''})"
            if left_out
            else ""
        )
        yield [
            (f"  {mark if is_plain else '─'} ", style),
            (printable(f"{name}: {curve.values[-1]:.6g}{more}"), ""),
        ]


def _is_drawn(value: float, is_log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not is_log)
