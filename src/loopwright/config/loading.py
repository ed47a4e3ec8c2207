"""From a file and the command line to a resolved config."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from .including import read_with_includes
from .interpolation import Resolver
from .overrides import Override, apply_override, parse_override
from .problems import ConfigError, Problem
from .tree import Config, Node

MODULES = "modules"
RUN_KEYS = ("name", "output_path", "resume", "seed", "tags")


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
    may_add: Collection[str] = RUN_KEYS,
    folder: str | Path | None = None,
) -> Config:
    """Read a file with its includes, apply overrides, resolve variables; every mistake is in one ConfigError.

    overrides: `a.b=1` changes, `+a.new=1` adds, `++a.b=1` either, `~a.b` removes; `callbacks.0.decay=0.9` by index.
    may_add: top-level keys that an override may set although the file does not, without a `+`.
    folder: where the modules that kinds name are, if neither beside the file nor where its `modules:` says.
    """
    problems: list[Problem] = []
    parsed = parse_overrides(overrides, problems)
    for override in parsed:
        if override.is_sweep:
            message = (
                "has several values, which makes a sweep of several runs; in quotes it is one text: 'key=\"a,b\"'."
            )
            problems.extend(override.problem(message).problems)
    root = read_root(path, problems)
    config = finish(root, parsed, problems, folder_of(path), environ=environ, may_add=may_add)
    return config if folder is None else Config(config.root, Path(folder).resolve())


def folder_of(path: str | Path) -> Path:
    return Path(path).resolve().parent


def parse_overrides(overrides: Iterable[str], problems: list[Problem]) -> list[Override]:
    """The overrides that can be read; the others are added to the problems."""
    found = []
    for text in overrides:
        try:
            found.append(parse_override(text))
        except ConfigError as error:
            problems.extend(error.problems)
    return found


def read_root(path: str | Path, problems: list[Problem]) -> Node:
    """The file with its includes; what cannot be read ends it here, with what was found before."""
    try:
        return read_with_includes(Path(path))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None


def finish(
    root: Node,
    overrides: Iterable[Override],
    problems: list[Problem],
    folder: Path,
    *,
    environ: Mapping[str, str],
    may_add: Collection[str],
) -> Config:
    """Apply the overrides to the tree and resolve its variables."""
    problems = list(problems)
    for override in overrides:
        try:
            apply_override(root, override, may_add)
        except ConfigError as error:
            problems.extend(error.problems)
    try:
        Resolver(root, environ).resolve()
    except ConfigError as error:
        problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Config(root, module_folder(root, folder))


def module_folder(root: Node, folder: Path) -> Path:
    """Where the modules that kinds name are looked for: the file's folder, or the one above it that `modules:` names.

    Only folders above the file, since a file from a stranger must not choose where on a disk code is taken from.
    """
    node = root.value.get(MODULES)
    if node is None or node.value is None:
        return folder
    found = (folder / node.value).resolve() if isinstance(node.value, str) else None
    if found is None or not folder.is_relative_to(found):
        message = f"is {node.shown()}; expected a folder that the file lies in, such as `..` or `../..`."
        raise ConfigError([Problem(node.file, node.line, MODULES, message)])
    return found
