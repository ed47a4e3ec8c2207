"""Loss curves as an SVG picture, drawn without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite

WIDTH, HEIGHT, MARGIN, LEGEND = 640, 320, 44, 110
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")


def draw_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One picture with a line for each name, through its (epoch, value) points."""
    points = [point for line in curves.values() for point in line if isfinite(point[1])]
    first, last = _span([x for x, _ in points])
    low, high = _span([y for _, y in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{MARGIN} 10V{HEIGHT - MARGIN}H{WIDTH - LEGEND}" fill="none" stroke="#999"/>',
        f'<text x="{MARGIN - 4}" y="16" text-anchor="end">{high:.3g}</text>',
        f'<text x="{MARGIN - 4}" y="{HEIGHT - MARGIN}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 16}">{first:.3g}</text>',
        f'<text x="{WIDTH - LEGEND}" y="{HEIGHT - MARGIN + 16}" text-anchor="end">{last:.3g} epochs</text>',
    ]
    for number, (name, line) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{MARGIN + (x - first) / (last - first) * (WIDTH - LEGEND - MARGIN):.1f},"
            f"{HEIGHT - MARGIN - (y - low) / (high - low) * (HEIGHT - MARGIN - 10):.1f}"
            for x, y in line
            if isfinite(y)
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="{WIDTH - LEGEND + 8}" y="{20 + 16 * number}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and largest of some values, never the same."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low, low + 1.0)
