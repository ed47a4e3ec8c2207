"""Which modules a config may have imported: those beside its file, and packages that can define what is needed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_used_folders: set[Path] = set()


class RefusedError(Exception):
    """A kind that is not used; the message says why and what to do."""


@contextmanager
def beside(folder: str | Path | None) -> Iterator[None]:
    """Puts a config's folder first on `sys.path`, so that modules beside the file are imported from there.

    `check` and `build` do this themselves; training is to run inside it too, for imports that come late. A module of
    the same name that an earlier config had beside it is forgotten.
    """
    if folder is None:
        yield
        return
    folder = Path(folder).resolve()
    entry = str(folder)
    _forget_namesakes(folder)
    _used_folders.add(folder)
    importlib.invalidate_caches()
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _forget_namesakes(folder: Path) -> None:
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name in names & sys.modules.keys():
        home = _home(sys.modules[name])
        if home is not None and home != folder and home in _used_folders:
            for loaded in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
                del sys.modules[loaded]


def _home(module: ModuleType) -> Path | None:
    """The folder in which a top-level module or package lies."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    path = Path(file).resolve()
    return path.parent.parent if path.name == "__init__.py" else path.parent


def import_allowed(name: str, bases: tuple[type, ...], folder: Path | None) -> ModuleType:
    """Import a top-level module if it may be, by rules that look at names and metadata only.

    Beside the file: yes. Standard library: no. Outside any installed distribution (an own project on the path): yes.
    In an installed distribution: if it is, or depends on, the one that defines what the place needs.
    """
    if name in sys.stdlib_module_names or name == "__main__":
        raise RefusedError(
            f"{name} belongs to Python itself, and nothing in it is ever called; a file of that name is not seen."
        )
    is_beside = folder is not None and _is_beside(name, folder)
    if not is_beside:
        _check_installed(name, bases, folder)
    module = import_module(name)
    if is_beside and folder is not None and _home(module) not in (None, folder.resolve()):
        raise RefusedError(
            f"{name} lies beside the file, but another {name} was imported before: {module.__file__}. Rename it."
        )
    return module


def import_module(name: str) -> ModuleType:
    """Import, with whatever goes wrong in the module as the reason why its kind cannot be used."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise RefusedError(f"importing {name} failed: {type(error).__name__}: {error}.") from error


def _is_beside(name: str, folder: Path) -> bool:
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None:
        return False
    return spec.origin is not None or find(name) is None  # a folder without __init__.py gives way to a real package


def find(name: str) -> ModuleSpec | None:
    """What would be imported, without importing it (or anything above it that is not imported yet)."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _check_installed(name: str, bases: tuple[type, ...], folder: Path | None) -> None:
    wanted = {base.__module__.split(".")[0] for base in bases}
    if name in wanted or name in ("torch", "loopwright"):
        return
    owners = _owners().get(name, [])
    if owners and not any(depends_on(owner, package) for owner in owners for package in wanted):
        raise RefusedError(
            f"{name} is not imported: {owners[0]} does not depend on {' or '.join(sorted(wanted))}, "
            f"so it cannot define what is needed here."
        )
    if find(name) is None:
        beside_file = sorted(path.stem for path in folder.glob("*.py")) if folder is not None else []
        there = f" (there: {', '.join(beside_file)})" if beside_file else ""
        raise RefusedError(f"there is no module {name}, neither beside the file{there} nor installed.")


@cache
def _owners() -> dict[str, list[str]]:
    return {name: list(owners) for name, owners in importlib.metadata.packages_distributions().items()}


@cache
def depends_on(distribution: str, package: str) -> bool:
    """Whether a distribution requires another: itself or as an extra, or through what it always requires."""
    wanted = {_plain(owner) for owner in _owners().get(package, [package])}
    waiting, seen, is_first = [distribution], set(), True
    while waiting:
        current = waiting.pop()
        for requirement in _requirements(current):
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match is None or ("extra ==" in requirement and not is_first):
                continue
            if _plain(match[0]) in wanted:
                return True
            if "extra ==" not in requirement and match[0] not in seen:
                seen.add(match[0])
                waiting.append(match[0])
        is_first = False
    return False


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(distribution: str) -> list[str]:
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
