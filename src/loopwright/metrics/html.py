"""HTML for notebooks: tables and bars that take the colours of the page, light or dark. Every text
is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

TABLE = "border-collapse:collapse;margin:4px 0;text-align:right;font-variant-numeric:tabular-nums"
MAX_ROWS = 30


def table_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; of many rows the last ones, and a line that says how many are before them."""
    first = max(len(rows) - MAX_ROWS, 0)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<tr>{head}</tr>"]
    if first:
        lines.append(f'<tr><td colspan="{len(header)}">{first} rows before these</td></tr>')
    for row in rows[first:]:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f'<table cellpadding="4" style="{TABLE}">{"".join(lines)}</table>'


def bar_html(label: str, fraction: float | None, text: str) -> str:
    """A bar with a label before and a text behind it; without a fraction, the texts alone."""
    shown = (
        ""
        if fraction is None
        else f'<progress max="1" value="{min(max(fraction, 0.0), 1.0):.4f}"></progress> '
    )
    return (
        f'<div style="font-variant-numeric:tabular-nums">{escape(label)} '
        f"{shown}{escape(text)}</div>"
    )


def line_html(text: str) -> str:
    """A line of text."""
    return f"<div>{escape(text)}</div>"


def history_html(epochs: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """Epochs as a table."""
    if not names:
        return line_html("History of no epochs yet.")
    rows = [
        [f"{at}", *(f"{row[name]:.4g}" if name in row else "" for name in names)]
        for at, row in enumerate(epochs, start=1)
    ]
    return table_html(["epoch", *names], rows)
