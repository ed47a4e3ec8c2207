"""`loopwright ui [RUNS]`: a page in the browser that shows runs while they train."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from ..dashboard.app import Address, bind, serve
from ..dashboard.folder import RunsFolder
from ..errors import ConfigurationError
from ..run.directory import MANIFEST
from ..text import counted
from .output import OK, printable

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
    print(printable(_found(folder)))
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
