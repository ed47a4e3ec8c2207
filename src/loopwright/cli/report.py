"""`loopwright report [RUN ...]`: runs as one HTML file to keep or to send, which needs no
server."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import ConfigurationError
from ..run.reading import RunView
from .exits import OK
from .output import printable, size_text
from .selection import all_runs, find_run

OUTPUT = "report.html"


def report_command(options: argparse.Namespace) -> int:
    from ..checkpoint.atomic import staged_file, write_bytes
    from ..dashboard.report import build_report, find_entries

    output = Path(options.output)
    _check(output, options.points)
    entries = find_entries([run for name in options.names for run in _runs(name, options.root)])
    text, notes = build_report(entries, options.points)
    data = text.encode()
    with staged_file(output.absolute()) as staging:
        write_bytes(staging, data)
    for note in notes:
        print(note)
    count = "1 run" if len(entries) == 1 else f"{len(entries)} runs"
    print(printable(f"{output}: {count}, {size_text(len(data))}. Open it in a browser."))
    return OK


def _check(output: Path, points: int | None) -> None:
    from ..dashboard.report import MARK

    if points is not None and points < 2:
        raise ConfigurationError(f"--points {points}: use 2 or more.")
    if not output.absolute().parent.is_dir():
        raise ConfigurationError(
            f"There is no folder {output.parent}: create it, or name another file with -o."
        )
    if output.is_dir():
        raise ConfigurationError(f"{output} is a folder: name a file, as in -o {output / OUTPUT}.")
    if output.exists():
        with output.open("rb") as file:
            if MARK.encode() not in file.read(4096):
                raise ConfigurationError(
                    f"{output} exists and is not a report: name another file with -o."
                )


def _runs(name: str, root: str) -> list[RunView]:
    """The run of this name, or all runs of a folder, the oldest first."""
    for path in (Path(name), Path(root) / name):
        if path.is_dir() and len(found := all_runs(path)) > 1:
            return found[::-1]
    return [find_run(name, root)]
