"""Write run directories that every later version must load and go on with:
`python -m tests.stored.make NAME...`

A folder such as `v0_first_edition` is written once, by the version whose files it shows, and never
again: what it is good for is that nobody can change it. The same holds for the programs that wrote
it (`native.py`, `interfaces.py`, `parts.py`, `project/`), since a run goes on with the program it
was started with. When the format of checkpoints or run directories changes, name a new folder in
`EDITION`, run this once, and leave the older folders where they are. Without a name all programs
are run that the folder has no files of.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..forked import call_forked
from . import interfaces, native

EDITION = "v0_first_edition"
HERE = Path(__file__).parent

PROGRAMS: dict[
    str, tuple[Callable[..., dict[str, Any]], int]
] = {  # each with the step in which it is killed
    "accumulating": (native.accumulating, 16),
    "adversaries": (native.adversaries, 13),
    "plateau": (native.plateau, 17),
    "simple": (interfaces.simple, 13),
    "lifecycle": (interfaces.lifecycle, 16),
    "configured": (interfaces.configured, 16),
    "modular": (interfaces.modular, 13),
    "adversarial": (interfaces.adversarial, 13),
}


def write(name: str, destination: Path) -> None:
    """Run a program until it is killed, and keep what it takes to go on."""
    program, dies_at = PROGRAMS[name]
    with TemporaryDirectory() as folder:
        ended = call_forked(partial(program, dies_at), Path(folder))
        if ended.code != -signal.SIGKILL:
            raise SystemExit(
                f"{name} was not killed, but ended with {ended.code}:\n{ended.out}{ended.err}"
            )
        _make_small(Path(folder))
        shutil.copytree(folder, destination, ignore=shutil.ignore_patterns("__pycache__", ".*"))


def _make_small(folder: Path) -> None:
    """Leave out the machine, all resume points but the last, and what SQLite had not yet put in its
    place."""
    for manifest in folder.rglob("run.json"):
        nothing = {
            "command": ["python", "train.py"],
            "platform": "-",
            "packages": {},
            "hardware": {},
        }
        content = (
            json.loads(manifest.read_text()) | nothing | {"git_commit": None, "git_dirty": None}
        )
        manifest.write_text(json.dumps(content, indent=1) + "\n")
    for pattern in ("checkpoints/update-*", "saved/checkpoint_epoch_*"):
        for older in sorted(folder.rglob(pattern))[:-1]:
            shutil.rmtree(older)
    for path in folder.rglob("metrics.sqlite"):
        with closing(sqlite3.connect(path)) as metrics:
            for command in (
                "PRAGMA journal_mode=DELETE",
                "PRAGMA page_size=1024",
                "VACUUM",
                "PRAGMA journal_mode=WAL",
            ):
                metrics.execute(command)


def main(names: list[str]) -> None:
    for name in names or [name for name in PROGRAMS if not (HERE / EDITION / name).exists()]:
        if (HERE / EDITION / name).exists():
            raise SystemExit(f"{EDITION}/{name} is there already, and is never written again.")
        write(name, HERE / EDITION / name)


if __name__ == "__main__":
    main(sys.argv[1:])
