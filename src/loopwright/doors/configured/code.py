"""The user's own modules beside a run file, copied to the run directory, where the config of the run finds them."""

from __future__ import annotations

import sys
from pathlib import Path

from ...checkpoint.atomic import staged_file, write_bytes
from ...errors import ConfigurationError


def own_modules(folder: Path) -> dict[Path, Path]:
    """Files of the loaded modules that were imported from a folder, by their paths below it."""
    folder = folder.resolve()
    found: dict[Path, Path] = {}
    beside = {path.stem for path in folder.glob("*")}  # looking closely at thousands of modules takes a while
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] not in beside or file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(folder) and path.relative_to(folder).with_suffix("").parts in _places(name):
            found[path.relative_to(folder)] = path
    return found


def _places(name: str) -> tuple[tuple[str, ...], ...]:
    """Where the file of a module is below the folder it is imported from."""
    parts = tuple(name.split("."))
    return parts, (*parts, "__init__")


def check_modules(folder: Path, destination: Path) -> None:
    """Refuse a directory for a new run in which files of the user's stand where modules would be copied to."""
    for below, path in own_modules(folder).items():
        target = destination / below
        if target.is_file() and path != target.resolve() and target.read_bytes() != path.read_bytes():
            raise ConfigurationError(
                f"{target} is another file than the module {below} that belongs to this run, and would be written "
                "over: choose another `output_path`."
            )


def copy_modules(folder: Path, destination: Path) -> list[str]:
    """Copy them; the names of files that were there already and have changed since."""
    changed = []
    for below, path in own_modules(folder).items():
        target, content = destination / below, path.read_bytes()
        if path == target.resolve():
            continue
        if target.is_file():
            if target.read_bytes() == content:
                continue
            changed.append(str(below))
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged_file(target) as staging:
            write_bytes(staging, content)
    return changed
