"""How commands print: tables, times and best values as text, and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..metrics.best import Mode
from ..run.reading import Run
from ..text import age, clock
from ..trees import as_json

RED = "\x1b[31m"
BOLD = "\x1b[1m"
PLAIN = "\x1b[0m"
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


def printable(text: str, keep: str = "") -> str:
    """Escape the characters that would move the cursor or change colours of a terminal."""
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> None:
    """Print aligned columns; the ones listed in `right` (by position, "0134") are right-aligned."""
    for line in table_lines(header, rows, right=right):
        print(line)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = ""
) -> Iterator[str]:
    """The lines of a table whose columns are as wide as their widest cell."""
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = [
            cell.rjust(width) if str(place) in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        yield styled(line, BOLD) if number == 0 else line


def print_json(value: Any) -> None:
    """Print strict JSON; numbers that are not finite become the strings "nan", "inf" and "-inf"."""
    print(json.dumps(as_json(value), indent=2, allow_nan=False))


def styled(text: str, style: str) -> str:
    """Add a terminal style to a text, if stdout is a terminal."""
    return f"{style}{text}{PLAIN}" if has_colours() else text


def age_text(seconds: float | None) -> str:
    """90 as "1 min"; "?" where it is not known."""
    return "?" if seconds is None else age(seconds)


def time_text(seconds: float | None) -> str:
    """3723 as "1:02:03"; "-" where it is not known."""
    return "-" if seconds is None else clock(seconds)


def number_text(value: object) -> str:
    """A number with six digits; "-" for None."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else f"{value!s:.40}"


def print_fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", fold: str = "0"
) -> None:
    """Print a table that fits the terminal; columns in `fold` (by position, "01") wrap where width
    is short, and the states of runs have colours."""
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
        table.add_row(
            *(Text(printable(cell), style=style) for cell, style in zip(row, styles, strict=True))
        )
    Console(highlight=False).print(table)


def best_text(run: Run, metric: str | None = None, mode: Mode | None = None) -> str:
    """The best value of a metric and its epoch; the last value where its mode is not known; "-"
    without any."""
    best = run.headline(metric, mode)
    if best is None:
        return "-"
    last = " (last)" if best.mode is None else ""
    return f"{best.name} {number_text(best.value)} @{best.epoch}{last}"


def has_colours() -> bool:
    """Whether stdout is a terminal that shows colours, and the user has not turned them off."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
