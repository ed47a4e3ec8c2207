"""`loopwright ui [RUNS]`: a page in the browser that shows runs while they train."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..run.reading import MANIFEST
from .arguments import ROOT, add_command
from .exits import OK
from .output import printable

if TYPE_CHECKING:
    from ..dashboard.folder import RunsFolder
    from ..dashboard.serve import Address

MORE = """\
The page has a table of runs, their curves while they train, and everything that was recorded. It only reads files, so
it never disturbs a run. It needs no account, and nothing in your program except `run_dir`.

Only this machine can open the page. With --host, other machines can open it too, with the token in the printed address.
To open it through ssh instead, run this on your own machine and open the printed address:

  ssh -L 6060:localhost:6060 MACHINE"""
EXAMPLE = """\
ui
ui runs/digits --port 6070
ui --host 0.0.0.0"""
HOST = "127.0.0.1"
PORT = 6060
FIRST = (
    "Runs appear here as they start: Trainer(..., run_dir='runs/first'), or `loopwright train "
    "run.yaml`."
)


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Show runs in the browser while they train."
    parser = add_command(
        parsers, common, "ui", run=ui_command, what=what, more=MORE, example=EXAMPLE
    )
    parser.add_argument(
        "root",
        metavar="DIR",
        nargs="?",
        default=ROOT,
        help=f"the folder of runs, or one run (default: {ROOT})",
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        default=PORT,
        help=f"the port (default: {PORT}, or the next free one)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=HOST,
        help=f"the address to listen on (default: {HOST})",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def ui_command(options: argparse.Namespace) -> int:
    from ..dashboard.folder import RunsFolder
    from ..dashboard.serve import bind, serve

    root = Path(options.root)
    root = root.parent if root.name == MANIFEST else root
    if root.exists() and not root.is_dir():
        raise ConfigurationError(
            f"{options.root} is not a folder: name the folder that runs are in, or one run."
        )
    folder = RunsFolder(root)
    address = bind(options.host, options.port)
    serve(folder, address, lambda: _started(folder, address, options))
    return OK


def _started(folder: RunsFolder, address: Address, options: argparse.Namespace) -> None:
    if options.port not in (0, address.port):
        print(f"Port {options.port} is in use: {address.port} is the next free one.")
    print(printable(_found(folder)))
    if address.token is not None:
        print("Everyone who has this address can see the runs:")
    print(f"{address.url}\nCtrl-C stops it.", flush=True)
    if options.open:
        import webbrowser

        webbrowser.open(address.url)


def _found(folder: RunsFolder) -> str:
    if folder.is_single:
        return f"The run {folder.shown}"
    if not folder.root.is_dir():
        return f"There is no folder {folder.shown} yet. {FIRST}"
    count = len(folder.find())
    if not count:
        return f"No runs in {folder.shown} yet. {FIRST}"
    return f"{count} {'run' if count == 1 else 'runs'} in {folder.shown}"
