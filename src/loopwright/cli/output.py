"""What commands share: exit codes, how they print, files that they write, and errors of the user's
own code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoint.inspect import CheckpointInfo
from ..errors import ConfigurationError, LoopwrightError
from ..metrics.best import Mode
from ..run.reading import Run
from ..text import age, clock
from ..trees import as_json

OK = 0
FOUND = 1
FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

# The only list of exit codes: `loopwright --help` and docs/cli.md print it.
EXIT_CODES = {
    OK: "success",
    FOUND: "success, but the answer is no: runs differ, a check found mistakes (the help of each "
    "command says which)",
    FAILED: "error; stderr says what went wrong",
    INTERRUPTED: "interrupted by Ctrl-C; `train` saves first, and the same command resumes the run",
    PIPE_CLOSED: "the reader of the output closed it, as `head` does",
    TERMINATED: "ended by SIGTERM; `train` saves first, and the same command resumes the run",
}
LOG = "log.txt"
PACKAGE = Path(__file__).resolve().parents[1]
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


def say(text: str, style: str = "", *, keep: str = "") -> None:
    """Print a text, with a terminal style if it has one; see `printable`."""
    print(styled(printable(text, keep), style) if style else printable(text, keep))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> None:
    """Print aligned columns; the ones listed in `right` (by position, "0134") are right-aligned."""
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = []
        for place, cell in enumerate(row):
            is_right = str(place) in right
            cells.append(cell.rjust(widths[place]) if is_right else cell.ljust(widths[place]))
        line = "  ".join(cells).rstrip()
        print(styled(line, BOLD) if number == 0 else line)


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


def metric_text(info: CheckpointInfo) -> str:
    """The metric that a model was kept by, with its value; "-" for a resume point."""
    return "-" if info.metric is None else f"{info.metric[0]} {number_text(info.metric[1])}"


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
    for row in rows:
        cells = []
        for title, cell in zip(header, row, strict=True):
            style = STYLES.get(cell, "") if title == "STATE" else ""
            cells.append(Text(printable(cell), style=style))
        table.add_row(*cells)
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


# Files and errors


class ProgramError(LoopwrightError):
    """Code that a config names has raised an error, which is the cause."""


def check_output(path: Path, *, force: bool, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, or that exists, before anything is computed."""
    if suffixes and path.suffix not in suffixes:
        ends = " or ".join(suffixes)
        raise ConfigurationError("output-suffix", f"{path}: the name must end in {ends}.")
    if path.exists() and not force:
        what = "choose another name, or add --force to replace it"
        raise ConfigurationError("output-exists", f"{path} exists: {what}.")
    if not path.absolute().parent.is_dir():
        raise ConfigurationError("no-output-folder", f"{path}: there is no folder {path.parent}.")


@contextmanager
def explained(run: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turn an error of the user's model, data or trainer into a ProgramError that says where it was
    raised.

    `run` returns the run directory, if there is one by then; its log has the traceback too.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of the output closed it: no error
        raise
    except LoopwrightError as error:
        text = noted(error)
        if text != str(error):
            raise ProgramError("program-error", text) from error
        raise
    except Exception as error:
        log = None if (directory := run()) is None else directory / LOG
        kept = f"; it is also in {log}" if log is not None and log.is_file() else ""
        lines = [*described(error), f"(--debug shows the traceback{kept}.)"]
        raise ProgramError("program-error", "\n".join(lines)) from error


def described(error: BaseException) -> list[str]:
    """The error in a line, the place in the user's code, and the notes added to it."""
    place = own_place(error)
    head = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return [head, *([] if place is None else [f"  {place}"]), *getattr(error, "__notes__", ())]


def noted(error: BaseException) -> str:
    """The message of an error, and the notes added to it in the next lines."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def own_place(error: BaseException) -> str | None:
    """The innermost line of code that is neither ours nor an installed package's."""
    library = Path(sys.base_prefix, "lib").resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        is_installed = {"site-packages", "dist-packages"} & set(path.parts)
        is_foreign = path.is_relative_to(PACKAGE) or path.is_relative_to(library)
        if path.is_file() and not is_installed and not is_foreign:
            line = f": {frame.line}" if frame.line else ""
            return f"{frame.filename}:{frame.lineno}, in {frame.name}{line}"
    return None
