"""From a file to a resolved config: its `defaults:` are included, overrides applied, `${...}`
replaced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..run.files import MAX_NODES
from ..text import near_names, nearest
from .overrides import Override, apply_override, parse_override
from .tree import ConfigError, Node, Problem, child_of, collecting, descend, join_key
from .yaml import parse_scalar, plain_text, read_file, write_yaml

DEFAULTS = "defaults"
REMOVE = "~"
REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
ENVIRONMENT = "env:"
MAX_TEXT = 1_000_000
MODULES = "modules"
RUN_KEYS = ("name", "output_path", "resume", "seed", "tags")


def read_with_includes(path: Path, trail: tuple[Path, ...] = ()) -> Node:
    """A file merged over its included files, in the order in which it lists them."""
    root = read_file(path)
    trail = (*trail, path.resolve())
    included = root.value.pop(DEFAULTS, None)
    merged = Node({}, root.file, root.line)
    problems: list[Problem] = []
    for item, key in _listed(included, problems) if included is not None else ():
        with collecting(problems):
            merged = merge(merged, _under(key, _included(item, path, trail), item))
    if problems:
        raise ConfigError(problems)
    return merge(merged, root)


def _listed(node: Node, problems: list[Problem]) -> list[tuple[Node, str]]:
    """The included files, each with the key under which its content goes ("" for the top)."""
    found: list[tuple[Node, str]] = []
    for item in node.value if isinstance(node.value, list) else [node]:
        for key, file in item.value.items() if isinstance(item.value, dict) else [("", item)]:
            if isinstance(file.value, str):
                found.append((file, str(key)))
            else:
                what = f"is {file.shown()}; expected the name of a YAML file, or a list of names."
                problems.append(file.problem(DEFAULTS, what))
    return found


def _included(item: Node, path: Path, trail: tuple[Path, ...]) -> Node:
    target = path.parent / item.value
    if target.resolve() in trail:
        names = " -> ".join(file.name for file in (*trail, target))
        raise item.error(DEFAULTS, f"{item.value} includes itself: {names}.")
    if not target.is_file():
        near = near_names(target.name, [file.name for file in target.parent.glob("*.y*ml")])
        hint = "the name is relative to the file that includes it."
        if near:
            hint = f"did you mean {near[0]}?"
        raise item.error(DEFAULTS, f"there is no file {item.value}; {hint}")
    return read_with_includes(target, trail)


def _under(key: str, content: Node, item: Node) -> Node:
    for part in reversed(key.split(".") if key else []):
        content = Node({part: content}, item.file, item.line)
    return content


def merge(base: Node, over: Node, key: str = "") -> Node:
    """Mappings are merged key by key, anything else is replaced; `~name:` drops a key of the
    base."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    result = dict(base.value)
    problems: list[Problem] = []
    for name, child in over.value.items():
        if isinstance(name, str) and name.startswith(REMOVE):
            dropped = name.removeprefix(REMOVE)
            if result.pop(dropped, None) is None:
                message = f"there is no {dropped} to remove; {nearest(dropped, base.value)}"
                problems.append(child.problem(join_key(key, name), message))
            continue
        # a mapping that is new is merged into an empty one, so that a `~name` inside it is seen
        before = result.get(name) or Node({}, child.file, child.line)
        with collecting(problems):
            result[name] = merge(before, child, join_key(key, name))
    if problems:
        raise ConfigError(problems)
    return Node(result, over.file, over.line)


class Config:
    """A resolved tree of plain dicts, lists and scalars that knows where each value came from.

    Args:
        root: the values with their files and lines.
        folder: the folder of the file; modules beside the file are imported from there.
        key: where this config lies in the whole ("" for the whole file).

    >>> from loopwright.config import Config
    >>> from loopwright.config.tree import to_node
    >>> config = Config(to_node({"model": {"width": 3}}, "run.yaml", 1), ".")
    >>> config.get("model.width"), "model.depth" in config, config.place("model.depth")
    (3, False, ('run.yaml', 1))
    """

    def __init__(self, root: Node, folder: str | Path, key: str = "") -> None:
        self.root = root
        self.folder = Path(folder)
        self.key = key
        self.tree: dict[str, Any] = root.plain()

    def place(self, key: str) -> tuple[str, int | None]:
        """The file and line of a dotted key; of the nearest one above it that exists, where it does
        not."""
        node = self.root
        parts = key.split(".") if key else []
        for count in range(len(parts), -1, -1):
            found = descend(self.root, ".".join(parts[:count]))
            if found is not None:
                node = found
                break
        return node.file, node.line

    def __contains__(self, key: str) -> bool:
        """Whether there is such a dotted key."""
        return descend(self.root, key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The plain value at a dotted key, or the default."""
        found = descend(self.root, key)
        return default if found is None else found.plain()

    def at(self, key: str) -> Config:
        """The part of this config below a dotted key, as `build` takes it; raises ConfigError if
        there is none."""
        found = descend(self.root, key)
        if found is None:
            parent = descend(self.root, key.rpartition(".")[0])
            known = [] if parent is None else [name for name, _ in parent.children()]
            hint = nearest(key.split(".")[-1], known)
            raise ConfigError([self.problem(key, f"there is no such key; {hint}")])
        return Config(found, self.folder, join_key(self.key, key) if self.key else key)

    def problem(self, key: str, message: str) -> Problem:
        """A mistake at a dotted key, for a program that checks more than types."""
        file, line = self.place(key)
        return Problem(file, line, join_key(self.key, key) if key else self.key, message)

    def to_yaml(self) -> str:
        """A file that loads to this tree; what came from the environment is still `${env:NAME}` in
        it."""
        return write_yaml(self.root)

    def __repr__(self) -> str:
        return f"Config({self.key or self.root.file!r}: {self.root.shown()})"


class UnresolvedError(Exception):
    """A variable that has no value; the message says why."""


class Resolver:
    """Replaces the variables in a tree, in place, and collects the variables without a value."""

    def __init__(self, root: Node, environ: Mapping[str, str]) -> None:
        self.root = root
        self.environ = environ
        self.problems: list[Problem] = []
        # by identity; the nodes are held so that no identity is used again
        self.done: dict[int, Node] = {}
        self.open: list[str] = []
        self.count = 0

    def resolve(self) -> None:
        self.visit(self.root, "")
        if self.problems:
            raise ConfigError(self.problems)

    def visit(self, node: Node, key: str) -> None:
        """Resolve a node and all below it."""
        if isinstance(node.value, str):
            self.visit_text(node, key)
            return
        for name, child in list(node.children()):
            self.visit(child, join_key(key, name))

    def visit_text(self, node: Node, key: str) -> None:
        if id(node) in self.done:
            return
        self.done[id(node)] = node
        if "${" not in node.value:
            return
        self.open.append(key)
        try:
            self.replace(node)
        except UnresolvedError as error:
            self.problems.append(node.problem(key, str(error)))
            node.value = None
        finally:
            self.open.pop()

    def replace(self, node: Node) -> None:
        """Put the value in place of the text: of any type where a variable is all of it, else
        text."""
        text = node.value
        whole = REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            found = self.lookup(whole[1].strip())
            node.value = found.value
            node.source = found.source
            return
        parts = []
        end = 0
        for match in REFERENCE.finditer(text):
            parts += [Node(text[end : match.start()], "", None), self.part(match)]
            end = match.end()
        parts.append(Node(text[end:], "", None))
        node.value = "".join(part.value for part in parts)
        if len(node.value) > MAX_TEXT:
            raise UnresolvedError("becomes a string of more than a million characters.")
        if any(part.source is not None for part in parts):
            node.source = "".join(
                escaped(part.value) if part.source is None else part.source for part in parts
            )

    def part(self, match: re.Match[str]) -> Node:
        """The text that takes the place of one variable."""
        if match[0] == "$${":
            return Node("${", "", None)
        if match[1] is None:
            raise UnresolvedError(
                "has a ${ that is not closed, or one variable inside another; to write the "
                "characters ${, use $${."
            )
        name = match[1].strip()
        found = (
            self.environment(name, is_text=True)
            if name.startswith(ENVIRONMENT)
            else self.lookup(name)
        )
        if isinstance(found.value, dict | list):
            raise UnresolvedError(f"{match[0]} is {found.shown()} and cannot be part of a string.")
        value = found.value if isinstance(found.value, str) else plain_text(found.value)
        return Node(value, "", None, found.source)

    def lookup(self, name: str) -> Node:
        if name.startswith(ENVIRONMENT):
            return self.environment(name, is_text=False)
        if ":" in name or not name:
            raise UnresolvedError(
                f"${{{name}}}: expected ${{key}}, ${{env:NAME}} or ${{env:NAME,default}}."
            )
        return self.referred(name)

    def environment(self, name: str, *, is_text: bool) -> Node:
        """The value of an environment variable, which is read as a number or word like any other
        unless it is text."""
        variable, has_default, default = (
            part.strip() for part in name.partition(":")[2].partition(",")
        )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise UnresolvedError(f"${{{name}}}: expected ${{env:NAME}} or ${{env:NAME,default}}.")
        text = self.environ.get(variable)
        if text is None and not has_default:
            raise UnresolvedError(
                f"the environment variable {variable} is not set: set it, or give a default: "
                f"${{env:{variable},...}}."
            )
        text = default if text is None else text
        try:
            value = text if is_text else parse_scalar(text)
        except ValueError:  # more digits than a number may have
            value = text
        return Node(value, "", None, f"${{{name}}}")

    def referred(self, name: str) -> Node:
        """A copy of the value of another key, its own variables resolved first."""
        target = self.find(name)
        if any(self.is_inside(key, name) for key in self.open):
            raise UnresolvedError(
                f"${{{name}}} refers to itself: {' -> '.join([*self.open, name])}."
            )
        self.open.append(name)
        try:
            self.visit(target, name)
        finally:
            self.open.pop()
        self.count += count_nodes(target, MAX_NODES)
        if self.count > MAX_NODES:
            raise UnresolvedError("the variables expand to more values than a config may have.")
        copied = target.copy()
        self.mark_done(copied)
        return copied

    def mark_done(self, node: Node) -> None:
        """What was resolved already is not read again: a `${` in it is text."""
        self.done[id(node)] = node
        for _, child in node.children():
            self.mark_done(child)

    def find(self, name: str) -> Node:
        """The node that a dotted name means; what is on the way may be a variable itself."""
        node = self.root
        path = ""
        for part in name.split("."):
            if (found := descend(self.root, name)) is not None:
                return found
            child = child_of(node, part)
            if child is None:
                known = [str(key) for key, _ in node.children()]
                where = f"{path} has no {part}" if path else f"the config has no key {part}"
                raise UnresolvedError(f"${{{name}}}: {where}; {nearest(part, known)}")
            node = child
            path = join_key(path, part)
            if isinstance(node.value, str) and path not in self.open:
                self.visit_text(node, path)
        return node

    @staticmethod
    def is_inside(key: str, name: str) -> bool:
        """Whether resolving `name` would come back to `key`."""
        return key == name or key.startswith(f"{name}.")


def escaped(text: str) -> str:
    """Text in which a reader sees no variables."""
    return text.replace("${", "$${")


def count_nodes(node: Node, limit: int) -> int:
    """The number of nodes in a tree, counted no further than the limit."""
    total = 0
    waiting = [node]
    while waiting and total <= limit:
        current = waiting.pop()
        total += 1
        waiting.extend(child for _, child in current.children())
    return total


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read a file with its includes, apply overrides, resolve variables; every mistake is in one
    ConfigError.

    Args:
        path: the YAML file.
        overrides: `a.b=1` changes, `+a.new=1` adds, `++a.b=1` either, `~a.b` removes;
            `callbacks.0.decay=0.9` by index.
        environ: the variables of `${env:NAME}`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from loopwright.config import load_config
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "run.yaml")
    ...     _ = file.write_text("width: 16\\nmodel: {width: '${width}'}")
    ...     load_config(file, ["width=32"]).tree
    {'width': 32, 'model': {'width': 32}}
    """
    problems: list[Problem] = []
    parsed = parse_overrides(overrides, problems)
    for override in parsed:
        if override.is_sweep:
            message = "has several values, which is a sweep; in quotes it is one: 'key=\"a,b\"'."
            problems += override.error(message).problems
    root = read_root(path, problems)
    return finish(root, parsed, problems, path, environ)


def parse_overrides(overrides: Iterable[str], problems: list[Problem]) -> list[Override]:
    """The overrides that can be read; the others are added to the problems."""
    found = []
    for text in overrides:
        with collecting(problems):
            found.append(parse_override(text))
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
    problems: Iterable[Problem],
    path: str | Path,
    environ: Mapping[str, str],
) -> Config:
    """Apply the overrides to the tree of a file and resolve its variables."""
    found = list(problems)
    for override in overrides:
        with collecting(found):
            apply_override(root, override, RUN_KEYS)
    with collecting(found):
        Resolver(root, environ).resolve()
    if found:
        raise ConfigError(found)
    return Config(root, module_folder(root, Path(path).resolve().parent))


def module_folder(root: Node, folder: Path) -> Path:
    """Where the modules that kinds name are looked for: the file's folder, or the one above it that
    `modules:` names.

    Only folders above the file, since a file from a stranger must not choose where on a disk code
    is taken from.
    """
    node = root.value.get(MODULES)
    if node is None or node.value is None:
        return folder
    found = (folder / node.value).resolve() if isinstance(node.value, str) else None
    if found is None or not folder.is_relative_to(found):
        what = f"is {node.shown()}; expected a folder that contains the file, such as `..`."
        raise node.error(MODULES, what)
    return found
