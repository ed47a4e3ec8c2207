"""HTML for notebooks: tables and bars that take the colours of the page, light or dark. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

CELL = "padding:2px 10px;text-align:right;font-variant-numeric:tabular-nums;background:transparent"
EDGE = "border-bottom:1px solid color-mix(in srgb, currentColor 30%, transparent)"
MAX_ROWS = 30


def table_html(header: Sequence[str], rows: Sequence[Sequence[str]], marked: Iterable[int] = ()) -> str:
    """A table; of many rows the last ones, and a line that says how many are before them.

    Args:
        header: The names of the columns.
        rows: The cells of each row.
        marked: The positions of rows in bold.
    """
    bold, first = set(marked), max(len(rows) - MAX_ROWS, 0)
    head = "".join(f'<th style="{CELL};{EDGE}">{escape(name)}</th>' for name in header)
    lines = [f"<tr>{head}</tr>"]
    if first:
        lines.append(f'<tr><td style="{CELL}" colspan="{len(header)}">{first} rows before these</td></tr>')
    for at, row in enumerate(rows[first:], start=first):
        weight = ";font-weight:bold" if at in bold else ""
        lines.append("<tr>" + "".join(f'<td style="{CELL}{weight}">{escape(cell)}</td>' for cell in row) + "</tr>")
    return f'<table style="border-collapse:collapse;margin:4px 0">{"".join(lines)}</table>'


def facts_html(facts: Mapping[str, str]) -> str:
    """Names and values, one pair under the other."""
    left = "padding:1px 10px 1px 0;text-align:left;background:transparent"
    rows = (
        f'<tr><td style="{left};opacity:0.7">{escape(name)}</td><td style="{left}">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table style="border-collapse:collapse;margin:4px 0">{"".join(rows)}</table>'


def bar_html(label: str, fraction: float | None, text: str) -> str:
    """A bar with a label before and a text behind it; without a fraction, the texts alone."""
    shown = "" if fraction is None else f'<progress max="1" value="{min(max(fraction, 0.0), 1.0):.4f}"></progress> '
    return f'<div style="font-variant-numeric:tabular-nums">{escape(label)} {shown}{escape(text)}</div>'


def line_html(text: str) -> str:
    """A line of text."""
    return f"<div>{escape(text)}</div>"
