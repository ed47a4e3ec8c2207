"""`loopwright init [FOLDER] --interface INTERFACE`: write a small project that trains at once."""

from __future__ import annotations

import argparse
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from ..errors import ConfigurationError
from .output import OK, say

# the optional package that an interface's program imports, and its extra
EXTRAS = {"adversarial": ("PIL", "images")}
START = {"configured": "loopwright train run.yaml"}
LEFT_OUT = ("__pycache__",)
OPTIONAL = ("README.md", ".gitignore")


def init_command(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    files = {
        name: source
        for name, source in template_files(options.interface).items()
        if not _is_kept(folder / name)
    }
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(
            "folder-is-file", f"{folder} is a file: name a folder, existing or new."
        )
    there = [name for name in files if _is_there(folder / name)]
    if there:
        raise ConfigurationError(
            "would-overwrite",
            f"{folder.resolve()} already has {' and '.join(there)}, and nothing is overwritten: "
            "name another folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        with (folder / name).open("xb") as file:
            file.write(source.read_bytes())
    say(f"Wrote {', '.join(files)} to {folder.resolve()}. To train:\n", keep="\n")
    first = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    if missing := _missing_extra(options.interface):
        print(f"    {missing}")
    say(f"    {first}{START.get(options.interface, 'python train.py')}")
    return OK


def _missing_extra(interface: str) -> str | None:
    """The command that installs a missing package of this interface's program; None where none is
    missing."""
    module, extra = EXTRAS.get(interface, ("", ""))
    return f"pip install 'loopwright[{extra}]'" if module and find_spec(module) is None else None


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _is_kept(path: Path) -> bool:
    """Whether it is an optional file of the skeleton that the project already has."""
    return path.name in OPTIONAL and _is_there(path)


def template_files(interface: str) -> dict[str, Traversable]:
    """The files of a skeleton, by the names they get."""
    templates = resources.files("loopwright.cli") / "templates"
    found = {
        item.name: item for item in (templates / interface).iterdir() if item.name not in LEFT_OUT
    }
    return {**dict(sorted(found.items())), ".gitignore": templates / "gitignore"}
