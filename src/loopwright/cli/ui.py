"""`loopwright ui [RUNS]` and `loopwright report [RUN ...]`: runs in the browser while they train, or
as one HTML file to keep or to send, which needs no server."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from ..checkpoint.atomic import staged_file, write_bytes
from ..dashboard.app import Address, bind, serve
from ..dashboard.folder import RunsFolder
from ..dashboard.report import MARK, build_report, find_entries
from ..errors import ConfigurationError, check_number
from ..run.directory import MANIFEST
from ..run.reading import Run, newest_first
from ..text import counted, size
from .output import OK, check_output, say
from .selection import find_run

OUTPUT = "report.html"
FIRST = (
    "Runs appear here as they start: Trainer(..., run_dir='runs/first'), or `loopwright train "
    "run.yaml`."
)


def ui_command(options: argparse.Namespace) -> int:
    root = Path(options.root)
    root = root.parent if root.name == MANIFEST else root
    if root.exists() and not root.is_dir():
        raise ConfigurationError(
            "not-a-folder",
            f"{options.root} is not a folder: name the folder that runs are in, or one run.",
        )
    folder = RunsFolder(root)
    address = bind(options.host, options.port)
    serve(folder, address, lambda: _started(folder, address, options))
    return OK


def _started(folder: RunsFolder, address: Address, options: argparse.Namespace) -> None:
    if options.port not in (0, address.port):
        print(f"Port {options.port} is in use: {address.port} is the next free one.")
    say(_found(folder))
    if address.token is not None:
        print("Everyone who has this address can see the runs:")
    print(f"{address.url}\nCtrl-C stops it.", flush=True)
    if options.open:
        webbrowser.open(address.url)


def _found(folder: RunsFolder) -> str:
    if folder.is_single:
        return f"The run {folder.shown}"
    if not folder.root.is_dir():
        return f"There is no folder {folder.shown} yet. {FIRST}"
    count = len(folder.find())
    if not count:
        return f"No runs in {folder.shown} yet. {FIRST}"
    return f"{counted(count, 'run')} in {folder.shown}"


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
    say(f"{made}. Open it in a browser.")
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
