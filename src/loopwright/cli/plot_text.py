"""A small chart in the terminal: one mark for each run, the scale at the side."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError

MARKS = "*o+x#@%&"
HEIGHT = 15
MOST_WIDE, LEAST_WIDE = 120, 30


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
