"""`loopwright report [RUN ...]`: runs as one HTML file to keep or to send, which needs no
server."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..checkpoint.atomic import staged_file, write_bytes
from ..dashboard.report import MARK, build_report, find_entries
from ..errors import ConfigurationError, check_number
from ..run.reading import Run, newest_first
from ..text import counted, size
from .output import OK, check_output, printable
from .selection import find_run

OUTPUT = "report.html"


def report_command(options: argparse.Namespace) -> int:
    output = Path(options.output)
    _check(output, options.points)
    entries = find_entries([run for name in options.names for run in _runs(name, options.root)])
    text, notes = build_report(entries, options.points)
    data = text.encode()
    with staged_file(output.absolute()) as staging:
        write_bytes(staging, data)
    for note in notes:
        print(note)
    made = f"{output}: {counted(len(entries), 'run')}, {size(len(data))}"
    print(printable(f"{made}. Open it in a browser."))
    return OK


def _check(output: Path, points: int | None) -> None:
    if points is not None:
        check_number("--points", points, least=2)
    check_output(output, force=True)
    if output.is_dir():
        raise ConfigurationError(
            "output-is-folder", f"{output} is a folder: name a file, as in -o {output / OUTPUT}."
        )
    if output.exists():
        with output.open("rb") as file:
            if MARK.encode() not in file.read(4096):
                raise ConfigurationError(
                    "not-a-report",
                    f"{output} exists and is not a report: name another file with -o.",
                )


def _runs(name: str, root: str) -> list[Run]:
    """The run of this name, or all runs of a folder, the oldest first."""
    for path in (Path(name), Path(root) / name):
        if path.is_dir() and len(found := newest_first(path)) > 1:
            return found[::-1]
    return [find_run(name, root)]
