"""`loopwright plot RUN... --metric NAME`: curves of one or several runs in one picture, or in the terminal."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..run.reading import RunView
from .arguments import RUN, add_command, add_root, find_run, short_path
from .exits import OK
from .output import number_text, print_json, printable

MORE = """\
Of several metrics, each has a panel of its own, with a curve for every run. A metric that is measured both in steps
and in epochs is drawn over the epochs, unless --by says steps or updates. A picture that is there is replaced."""
EXAMPLE = """\
plot last --metric loss --text
plot runs/first runs/second --metric eval_loss --metric loss --by steps --log --output curves.svg"""
FORMATS = (".png", ".svg", ".pdf")
MARKS = "*o+x#@%&"
HEIGHT = 15
MOST_WIDE, LEAST_WIDE = 120, 30


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Draw metrics of runs."
    parser = add_command(parsers, common, "plot", run=plot_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("names", metavar="RUN", nargs="+", help=RUN)
    parser.add_argument(
        "--metric", metavar="NAME", action="append", required=True, help="what to draw (repeat for several panels)"
    )
    add_root(parser)
    parser.add_argument("--by", choices=("epochs", "steps", "updates"), help="what the curves go along")
    parser.add_argument("--smooth", metavar="N", type=int, default=1, help="average over the last N values")
    parser.add_argument("--log", action="store_true", help="a logarithmic scale")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o", "--output", metavar="FILE", help=f"a {', '.join(FORMATS)} file (default: the metric's name, .png)"
    )
    where.add_argument("--text", action="store_true", help="draw in the terminal instead")
    where.add_argument("--json", action="store_true", help="print the curves as JSON instead")


def plot_command(options: argparse.Namespace) -> int:
    if options.smooth < 1:
        raise ConfigurationError(f"--smooth {options.smooth}: average over 1 value or more.")
    runs = {run.path: run for run in (find_run(name, options.root) for name in options.names)}
    panels = {
        name: collect(list(runs.values()), name, options.by, options.smooth, options.root)
        for name in dict.fromkeys(options.metric)
    }
    if options.json:
        print_json({name: [asdict(curve) for curve in curves] for name, curves in panels.items()})
        return OK
    if options.text:
        for name, curves in panels.items():
            print("\n".join(map(printable, draw_text(name, curves, is_log=options.log))))
        return OK
    path = Path(options.output or re.sub(r"[^\w.-]+", "-", "+".join(panels)).strip("-.") + ".png")
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(f"--output {path}: a picture is one of {', '.join(FORMATS)}.")
    draw_picture(path, panels, is_log=options.log)
    print(printable(f"{', '.join(panels)} of {len(runs)} {'run' if len(runs) == 1 else 'runs'} drawn to {path}."))
    return OK


def collect(runs: Sequence[RunView], name: str, by: str | None, smooth: int, root: str) -> list[Curve]:
    """The values of a metric of each run, over epochs if all runs have some; an error lists the known metrics."""
    along = by or ("epochs" if all(run.metrics.epochs(name) for run in runs) else "steps")
    curves = []
    for run in runs:
        points = run.metrics.epochs(name) if along == "epochs" else run.metrics.steps(name)
        if along == "updates" and not points:
            points = run.metrics.epochs(name)
        if not points:
            raise ConfigurationError(_missing(run, name, by, root))
        places = tuple(point.update if along == "updates" else point.at for point in points)
        values = tuple(_smoothed([point.value for point in points], smooth))
        curves.append(Curve(short_path(run, root), along, places, values))
    return curves


def _missing(run: RunView, name: str, by: str | None, root: str) -> str:
    known = run.metrics.epoch_names if by == "epochs" else run.metrics.names()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near and near[0] != name else ""
    where = f" of {by}" if by else ""
    return f"{short_path(run, root)} has no metric {name!r}{where}; it has: {', '.join(known) or 'none yet'}.{hint}"


def _smoothed(values: Sequence[float], window: int) -> list[float]:
    """Moving averages over `window` values; the first ones over the values so far."""
    if window == 1:
        return list(values)
    return [sum(part) / len(part) for end in range(1, len(values) + 1) if (part := values[max(end - window, 0) : end])]


def draw_picture(path: Path, panels: dict[str, list[Curve]], *, is_log: bool) -> None:
    """One panel for each metric, one curve for each run."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        from ..errors import MissingExtraError

        raise MissingExtraError(
            "A picture needs matplotlib: pip install 'loopwright[plots]'. (--text draws without.)"
        ) from error
    figure = Figure(figsize=(max(5.0 * len(panels), 6.0), 4), layout="constrained")
    for axis, (name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for curve in curves:
            marker = "o" if len(curve.values) <= 50 else None
            axis.plot(curve.places, curve.values, marker=marker, ms=3, lw=1.2, label=_plain(curve.label))
        last = number_text(curves[0].values[-1]) if len(curves) == 1 else ""
        axis.set(title=_plain(f"{name} {last}".rstrip()), xlabel=curves[0].along)
        axis.set_yscale("log" if is_log else "linear")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)


def _plain(text: str) -> str:
    """Escape text for matplotlib: a dollar sign would begin a formula, an underscore hide a label."""
    return printable(text).replace("$", r"\$").removeprefix("_")


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one run along its epochs, steps or updates."""

    label: str
    along: str
    places: tuple[int, ...]
    values: tuple[float, ...]


def draw_text(title: str, curves: Sequence[Curve], *, is_log: bool = False, width: int | None = None) -> list[str]:
    """The lines of a chart as wide as the terminal."""
    shown = [_shown(curve, is_log=is_log) for curve in curves]
    every = [point for points in shown for point in points]
    if not every:
        raise ConfigurationError(f"No value of {title} can be drawn: none is finite{' and above 0' if is_log else ''}.")
    low, high = min(value for _, value in every), max(value for _, value in every)
    first, last = min(place for place, _ in every), max(place for place, _ in every)
    labels = [_label(value, is_log) for value in (high, (low + high) / 2, low)]
    gutter = max(map(len, labels))
    columns = max(min(width or shutil.get_terminal_size().columns, MOST_WIDE) - gutter - 3, LEAST_WIDE)
    grid = [[" "] * columns for _ in range(HEIGHT)]
    for points, mark in reversed(list(zip(shown, _marks(), strict=False))):  # the first run lies on top
        for place, value in points:
            row = round((high - value) / (high - low) * (HEIGHT - 1)) if high > low else HEIGHT // 2
            column = round((place - first) / (last - first) * (columns - 1)) if last > first else columns // 2
            grid[row][column] = mark
    beside = {0: labels[0], HEIGHT // 2: labels[1], HEIGHT - 1: labels[2]}
    lines = [f"{beside.get(at, ''):>{gutter}} | {''.join(row).rstrip()}" for at, row in enumerate(grid)]
    return [
        f"{title} over {curves[0].along}{', logarithmic' if is_log else ''}",
        *(line.rstrip() for line in lines),
        f"{'':>{gutter}} +{'-' * (columns + 1)}",
        f"{'':>{gutter}}   {first}{last:>{columns - len(str(first))}}",
        *_legend(curves, shown),
    ]


def _legend(curves: Sequence[Curve], shown: Sequence[Sequence[object]]) -> Iterator[str]:
    for curve, points, mark in zip(curves, shown, _marks(), strict=False):
        left_out = len(curve.values) - len(points)
        more = f" ({left_out} not drawn: not finite, or not above 0)" if left_out else ""
        yield f"  {mark} {curve.label}: {curve.values[-1]:.6g}{more}"


def _marks() -> Iterator[str]:
    while True:
        yield from MARKS


def _shown(curve: Curve, *, is_log: bool) -> list[tuple[int, float]]:
    points = zip(curve.places, curve.values, strict=True)
    if is_log:
        return [(place, math.log10(value)) for place, value in points if math.isfinite(value) and value > 0]
    return [(place, value) for place, value in points if math.isfinite(value)]


def _label(value: float, is_log: bool) -> str:
    return f"{10**value if is_log else value:.4g}"
