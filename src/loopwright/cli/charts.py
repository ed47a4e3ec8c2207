"""Curves in characters: a chart of braille dots, eight to a character, or of ASCII where a terminal
has no others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..metrics.best import by_importance

Point: TypeAlias = tuple[float, float, float, float]  # place, value, smallest and largest value
Line: TypeAlias = list[tuple[str, str]]  # pieces of text, each with its style in the words of rich

# of a braille character, by row and column
DOTS = (
    (0x01, 0x08),
    (0x02, 0x10),
    (0x04, 0x20),
    (0x40, 0x80),
)
BRAILLE = 0x2800
STYLES = ("cyan", "yellow", "magenta", "green", "red", "blue")
MARKS = "*o+x#@%&"  # of curves in ASCII
LEAST_WIDE = 12  # columns of the drawing itself


@dataclass(frozen=True, slots=True)
class Drawn:
    """One curve of a chart: values along an axis, each with the smallest and largest value that it
    stands for."""

    label: str
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
    pens: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def dot(self, x: int, y: int, pen: tuple[str, str]) -> None:
        """Set a dot with a pen, which is a style and a character for ASCII; y goes down."""
        cell = (y // 4, x // 2)
        self.bits[cell] = self.bits.get(cell, 0) | DOTS[y % 4][x % 2]
        self.pens[cell] = pen

    def line(self, start: tuple[int, int], end: tuple[int, int], pen: tuple[str, str]) -> None:
        """Set the dots between two places."""
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for at in range(steps + 1):
            x = start[0] + round((end[0] - start[0]) * at / steps)
            y = start[1] + round((end[1] - start[1]) * at / steps)
            self.dot(x, y, pen)

    def row(self, number: int, *, is_plain: bool) -> Iterator[tuple[str, str]]:
        """The characters of a row with their styles."""
        for column in range(self.columns):
            bits = self.bits.get((number, column), 0)
            style, mark = self.pens.get((number, column), ("", " "))
            yield mark if is_plain or not bits else chr(BRAILLE + bits), style


class Chart:
    """A chart of curves over one axis, in a given number of characters.

    Args:
        title: The line above it.
        curves: The curves; the last one lies on top.
        along: The name of the axis.
        is_log: Whether values are drawn on a logarithmic scale; those that are not above 0 are left
            out.
        is_plain: Whether to use ASCII characters only, with another one for each curve.
    """

    def __init__(
        self,
        title: Line,
        curves: Sequence[Drawn],
        along: str,
        *,
        is_log: bool = False,
        is_plain: bool = False,
    ) -> None:
        self.title = title
        self.curves = curves
        self.along = along
        self.is_log = is_log
        self.is_plain = is_plain

    def lines(self, width: int, height: int) -> list[Line]:
        """The lines of the chart: the title, the drawing with its scale, and the ends of the
        axis."""
        found = [self._heights(curve) for curve in self.curves]
        heights = [
            height
            for points in found
            for point in points
            if point is not None
            for height in point[1:]
        ]
        if not heights:
            is_empty = not any(curve.places for curve in self.curves)
            return [self.title, *([] if is_empty else [[("no value that can be drawn", "dim")]])]
        low = min(heights)
        high = max(heights)
        places = [place for curve in self.curves for place in curve.places]
        rows = max(height - 3, 1)
        labels = self._labels(low, high, rows)
        gutter = max(map(len, labels.values()))
        canvas = Canvas(max(width - gutter - 2, LEAST_WIDE), rows)
        for number, points in enumerate(found):
            self._draw(canvas, points, (min(places), max(places)), (low, high), pen_of(number))
        corner, side = ("+", "|") if self.is_plain else ("└", "┤")
        drawn = [
            [
                (f"{labels.get(number, ''):>{gutter}} {side}", "dim"),
                *canvas.row(number, is_plain=self.is_plain),
            ]
            for number in range(rows)
        ]
        dash = "-" if self.is_plain else "─"
        axis = [(f"{'':>{gutter}} {corner}{dash * canvas.columns}", "dim")]
        return [
            self.title,
            *drawn,
            axis,
            self._ends(gutter, canvas.columns, min(places), max(places)),
        ]

    def _heights(self, curve: Drawn) -> list[Point | None]:
        """The points in the scale of the chart; None for one that cannot be drawn, where the line
        has a gap."""
        columns = (curve.values, curve.lows, curve.highs)
        values, lows, highs = ([self._scaled(value) for value in column] for column in columns)
        points = zip(curve.places, values, lows, highs, strict=True)
        return [point if all(map(math.isfinite, point)) else None for point in points]

    def _scaled(self, value: float) -> float:
        if not self.is_log:
            return value
        return math.log10(value) if value > 0 else math.nan

    def _labels(self, low: float, high: float, rows: int) -> dict[int, str]:
        values = {0: high, rows - 1: low}
        if rows >= 5 and high > low:
            values[(rows - 1) // 2] = high - (high - low) * ((rows - 1) // 2) / (rows - 1)
        return {row: f"{10**value if self.is_log else value:.4g}" for row, value in values.items()}

    def _draw(
        self,
        canvas: Canvas,
        points: Sequence[Point | None],
        places: tuple[float, float],
        heights: tuple[float, float],
        pen: tuple[str, str],
    ) -> None:
        """Draw the range of each point, then a line through the values."""
        (first, last) = places
        (low, high) = heights

        def across(place: float) -> int:
            share = (place - first) / (last - first) if last > first else 0.5
            return round(share * (2 * canvas.columns - 1))

        def down(height: float) -> int:
            share = (high - height) / (high - low) if high > low else 0.5
            return round(share * (4 * canvas.rows - 1))

        for place, _, lowest, highest in filter(None, points):
            if lowest < highest:
                canvas.line(
                    (across(place), down(highest)),
                    (across(place), down(lowest)),
                    (f"dim {pen[0]}", pen[1]),
                )
        drawn = [None if point is None else (across(point[0]), down(point[1])) for point in points]
        for at, end in enumerate(drawn):
            start = drawn[at - 1] if at else None
            if end is not None:
                canvas.line(start or end, end, pen)

    def _ends(self, gutter: int, columns: int, first: float, last: float) -> Line:
        left = f"{first:,.0f}"
        right = f"{last:,.0f}"
        middle = self.along.center(max(columns - len(left) - len(right), 0))[
            : max(columns - len(left) - len(right), 0)
        ]
        return [(f"{'':>{gutter}}  {left}{middle}{right}", "dim")]


def pen_of(number: int) -> tuple[str, str]:
    """The style and the ASCII character of a curve, by its number."""
    return STYLES[number % len(STYLES)], MARKS[number % len(MARKS)]


def metric_groups(names: Iterable[str], eval_keys: Sequence[str]) -> list[list[str]]:
    """The metrics that share a chart: one, with its values in evaluations; the most important group
    first."""
    known = list(names)
    prefixes = [f"{key}_" for key in ("eval", *eval_keys)]
    groups: dict[str, list[str]] = {}
    for name in by_importance(known, eval_keys):
        stem = next(
            (name[len(p) :] for p in prefixes if name.startswith(p) and name[len(p) :] in known),
            name,
        )
        groups.setdefault(stem, []).append(name)
    return [sorted(group, key=lambda name: name != stem) for stem, group in groups.items()]
