"""Files that include others: `defaults:` names them, and the file's own keys win over theirs."""

from __future__ import annotations

import difflib
from pathlib import Path

from .problems import ConfigError, Problem, nearest
from .reading import read_file
from .tree import Node, join_key

DEFAULTS = "defaults"
REMOVE = "~"


def read_with_includes(path: Path, trail: tuple[Path, ...] = ()) -> Node:
    """A file merged over those that it includes, in the order in which it lists them."""
    root = read_file(path)
    trail = (*trail, path.resolve())
    included = root.value.pop(DEFAULTS, None)
    merged = Node({}, root.file, root.line)
    problems: list[Problem] = []
    for item, key in _listed(included, problems) if included is not None else ():
        try:
            merged = merge(merged, _under(key, _included(item, path, trail), item))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return merge(merged, root)


def _listed(node: Node, problems: list[Problem]) -> list[tuple[Node, str]]:
    """The included files, each with the key under which its content goes ("" for the top)."""
    found: list[tuple[Node, str]] = []
    for item in node.value if isinstance(node.value, list) else [node]:
        pairs = [("", item)] if not isinstance(item.value, dict) else [(str(k), v) for k, v in item.value.items()]
        for key, file in pairs:
            if isinstance(file.value, str):
                found.append((file, key))
                continue
            message = f"is {file.shown()}; expected the name of a YAML file, or a list of such names."
            problems.append(Problem(file.file, file.line, DEFAULTS, message))
    return found


def _included(item: Node, path: Path, trail: tuple[Path, ...]) -> Node:
    target = path.parent / item.value
    if target.resolve() in trail:
        names = " -> ".join(file.name for file in (*trail, target))
        raise ConfigError([Problem(item.file, item.line, DEFAULTS, f"{item.value} includes itself: {names}.")])
    if not target.is_file():
        there = [file.name for file in target.parent.glob("*.y*ml")] if target.parent.is_dir() else []
        near = difflib.get_close_matches(target.name, there, n=1)
        hint = f"did you mean {near[0]}?" if near else "the name is relative to the file that includes it."
        raise ConfigError([Problem(item.file, item.line, DEFAULTS, f"there is no file {item.value}; {hint}")])
    return read_with_includes(target, trail)


def _under(key: str, content: Node, item: Node) -> Node:
    for part in reversed(key.split(".") if key else []):
        content = Node({part: content}, item.file, item.line)
    return content


def merge(base: Node, over: Node, key: str = "") -> Node:
    """Mappings are merged key by key, anything else is replaced; `~name:` drops a key of the base."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    result = dict(base.value)
    problems: list[Problem] = []
    for name, child in over.value.items():
        if isinstance(name, str) and name.startswith(REMOVE):
            dropped = name.removeprefix(REMOVE)
            if result.pop(dropped, None) is None:
                message = f"there is no {dropped} to remove; {nearest(dropped, map(str, base.value))}"
                problems.append(Problem(child.file, child.line, join_key(key, name), message))
            continue
        try:
            result[name] = merge(result[name] if name in result else _empty(child), child, join_key(key, name))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Node(result, over.file, over.line)


def _empty(like: Node) -> Node:
    """What a mapping that is new is merged into, so that a `~name` inside it is seen."""
    return Node({}, like.file, like.line)
