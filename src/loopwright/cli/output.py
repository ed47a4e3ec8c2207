"""How commands print: tables, sizes, ages and runs as text, and JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..metrics.best import Mode
from ..metrics.progress import counted
from ..run.metrics_view import Point
from ..run.reading import RunView
from ..run.run_progress import COUNTS, RunProgress

if TYPE_CHECKING:
    from rich.table import Table

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
AGES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
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
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
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
    print(json.dumps(strict_json(value), indent=2, allow_nan=False))


def styled(text: str, style: str) -> str:
    """Add a terminal style to a text, if stdout is a terminal."""
    return f"{style}{text}{PLAIN}" if has_colours() else text


def size_text(size: int) -> str:
    """1234567 as "1.23 MB"."""
    value = float(size)
    unit = 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value = value / 1000
        unit = unit + 1
    return f"{size} B" if unit == 0 else f"{value:.3g} {UNITS[unit]}"


def age_text(seconds: float | None) -> str:
    """90 as "1 min"; a moment in the future, on another machine's clock, is "0 s"."""
    if seconds is None:
        return "?"
    unit, length = next(((unit, length) for unit, length in AGES if seconds >= length), AGES[-1])
    return f"{max(int(seconds // length), 0)} {unit}"


def number_text(value: object) -> str:
    """A number with six digits; "-" for None."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else f"{value!s:.40}"


def strict_json(value: Any) -> Any:
    """Convert values that JSON does not have (NaN, infinity, paths, ...) to strings."""
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def print_fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", fold: str = "0"
) -> None:
    """Print a table that fits the terminal; columns in `fold` (by position, "01") wrap where width
    is short."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        print_table(header, rows, right=right)
        return
    from rich.console import Console

    Console(highlight=False).print(fitted_table(header, rows, right=right, fold=fold))


def fitted_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", fold: str = "0"
) -> Table:
    """A table for a terminal, with the states of runs in colours."""
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
    return table


def age_of(run: RunView) -> float | None:
    """Seconds since the run was started."""
    return None if run.started is None else (datetime.now(UTC) - run.started).total_seconds()


def progress_text(progress: RunProgress) -> str:
    """ "3 of 10 epochs, 30%", or "3 epochs, 15 updates" where no limit is known."""
    if progress.limit is not None and progress.fraction is not None:
        name, limit = progress.limit
        return f"{getattr(progress, name) or 0} of {counted(limit, name)}, {progress.fraction:.0%}"
    counts = ((name, getattr(progress, name)) for name in ("epoch", "update"))
    texts = [counted(count, name) for name, count in counts if count is not None]
    return ", ".join(texts) or "-"


def best_text(run: RunView, metric: str | None = None, mode: Mode | None = None) -> str:
    """The best value of a metric and its epoch; the last value where its mode is not known; "-"
    without any."""
    name = metric or run.main_metric
    best = None if name is None else run.best_of(name, mode)
    if best is not None:
        return f"{best.name} {number_text(best.value)} @{best.epoch}"
    last = None if name is None or run.mode_of(name) else run.last_of(name)
    return "-" if last is None else f"{name} {number_text(last.value)} @{last.at} (last)"


def time_text(seconds: float | None) -> str:
    """3723 as "1:02:03"."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def left_text(run: RunView) -> str:
    """The time that a run still takes; "-" where that is not known."""
    return time_text(seconds_left(run))


def seconds_left(run: RunView) -> float | None:
    """The time that a run still takes, in seconds; None where that is not known."""
    try:
        return run.eta
    except CheckpointError:  # of the metrics, which `problems` is about
        return None


def has_colours() -> bool:
    """Whether stdout is a terminal that shows colours, and the user has not turned them off."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def run_as_json(
    run: RunView, *, metric: str | None = None, mode: Mode | None = None
) -> dict[str, Any]:
    """A run as `runs --json` and `show --json` print it."""
    progress = run.progress
    name = metric or run.main_metric
    values = {
        known: run.best_of(known, mode if known == name else None) for known in run.epoch_names
    }
    best = {
        known: {"value": b.value, "epoch": b.epoch, "mode": b.mode}
        for known, b in values.items()
        if b is not None
    }
    last = (
        run.last_of(name)
        if name is not None and name not in best and run.mode_of(name) is None
        else None
    )
    return {
        "path": str(run.path),
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "tags": list(run.tags),
        "progress": {
            **{count: getattr(progress, count) for count in COUNTS},
            "limit": None if progress.limit is None else {progress.limit[0]: progress.limit[1]},
            "fraction": progress.fraction,
        },
        "metric": _metric_as_json(name, best.get(name or ""), last),
        "best": best,
        "started": None if run.started is None else run.started.isoformat(),
        "ended": None if run.ended is None else run.ended.isoformat(),
        "seconds": run.seconds,
        "age_seconds": age_of(run),
        "problems": list(run.problems),
    }


def _metric_as_json(
    name: str | None, best: Mapping[str, Any] | None, last: Point | None
) -> dict[str, Any] | None:
    """The main metric of a run; without a mode its last value, since the best is not known."""
    if best is not None:
        return {"name": name, **best}
    return (
        None
        if last is None
        else {"name": name, "value": last.value, "epoch": last.at, "mode": None}
    )
