"""Tables that fit: to the width of a terminal where there is one, plain aligned columns elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .output import print_table, printable

STYLES = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "crashed": "red",
    "unreadable": "red",
    "damaged": "red",
    "interrupted": "yellow",
    "stopped": "yellow",
}


def print_fitted(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", fold: str = "0") -> None:
    """Columns named in `right` (by their place, "01") are right-aligned; those in `fold` break where width is short."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        print_table(header, rows, right=right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, title in enumerate(header):
        may_break = str(place) in fold
        table.add_column(
            title,
            justify="right" if str(place) in right else "left",
            no_wrap=not may_break,
            overflow="fold" if may_break else "ellipsis",
            min_width=8 if may_break else None,
        )
    state = header.index("STATE") if "STATE" in header else -1
    for row in rows:
        styles = [STYLES.get(cell, "") if place == state else "" for place, cell in enumerate(row)]
        table.add_row(*(Text(printable(cell), style=style) for cell, style in zip(row, styles, strict=True)))
    Console(highlight=False).print(table)
