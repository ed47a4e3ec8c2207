"""How commands print: aligned tables, sizes and ages for people, JSON for machines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
AGES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"


def printable(text: str, keep: str = "") -> str:
    """Text from a file as a terminal may have it: what would move the cursor or change colours is spelled out."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", indent: str = "") -> None:
    """Columns as wide as they have to be; those named in `right` (by their place, "0134") are right-aligned."""
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = [
            cell.rjust(width) if str(place) in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = indent + "  ".join(cells).rstrip()
        print(styled(line, BOLD) if number == 0 else line)


def print_json(value: Any) -> None:
    """Strict JSON, in which numbers that are not finite are the texts "nan", "inf" and "-inf"."""
    print(json.dumps(strict_json(value), indent=2, allow_nan=False))


def styled(text: str, style: str) -> str:
    """The text in a style, where a terminal shows it."""
    shows = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"{style}{text}{PLAIN}" if shows else text


def size_text(size: int) -> str:
    """1234567 as "1.23 MB"."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.3g} {UNITS[unit]}"


def age_text(seconds: float | None) -> str:
    """90 as "1 min"; a moment in the future, on another machine's clock, is "0 s"."""
    if seconds is None:
        return "?"
    unit, length = next(((unit, length) for unit, length in AGES if seconds >= length), AGES[-1])
    return f"{max(int(seconds // length), 0)} {unit}"


def number_text(value: object) -> str:
    """A number as short as it can be read; "-" where there is none."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else f"{value!s:.40}"


def strict_json(value: Any) -> Any:
    """The value with numbers that JSON does not have as texts, and anything else that it does not have as text."""
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
