"""From a file to a resolved config: its `defaults:` are included, overrides applied, `${...}`
replaced."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ..run.config_file import MAX_NODES
from ..text import nearest
from .overrides import Override, apply_override, parse_override
from .tree import Config, ConfigError, Node, Problem, child_of, descend, join_key
from .yaml import parse_scalar, plain_text, read_file

DEFAULTS = "defaults"
REMOVE = "~"
REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
FUNCTIONS = ("env:", "env_text:")
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
        pairs = (
            [("", item)]
            if not isinstance(item.value, dict)
            else [(str(k), v) for k, v in item.value.items()]
        )
        for key, file in pairs:
            if isinstance(file.value, str):
                found.append((file, key))
                continue
            message = (
                f"is {file.shown()}; expected the name of a YAML file, or a list of such names."
            )
            problems.append(Problem(file.file, file.line, DEFAULTS, message))
    return found


def _included(item: Node, path: Path, trail: tuple[Path, ...]) -> Node:
    target = path.parent / item.value
    if target.resolve() in trail:
        names = " -> ".join(file.name for file in (*trail, target))
        raise ConfigError(
            [Problem(item.file, item.line, DEFAULTS, f"{item.value} includes itself: {names}.")]
        )
    if not target.is_file():
        there = (
            [file.name for file in target.parent.glob("*.y*ml")] if target.parent.is_dir() else []
        )
        near = difflib.get_close_matches(target.name, there, n=1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else "the name is relative to the file that includes it."
        )
        raise ConfigError(
            [Problem(item.file, item.line, DEFAULTS, f"there is no file {item.value}; {hint}")]
        )
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
                message = (
                    f"there is no {dropped} to remove; {nearest(dropped, map(str, base.value))}"
                )
                problems.append(Problem(child.file, child.line, join_key(key, name), message))
            continue
        try:
            result[name] = merge(
                result[name] if name in result else _empty(child), child, join_key(key, name)
            )
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Node(result, over.file, over.line)


def _empty(like: Node) -> Node:
    """What a mapping that is new is merged into, so that a `~name` inside it is seen."""
    return Node({}, like.file, like.line)


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
            self.problems.append(Problem(node.file, node.line, key, str(error)))
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
            if name.startswith(FUNCTIONS)
            else self.lookup(name)
        )
        if isinstance(found.value, dict | list):
            raise UnresolvedError(f"{match[0]} is {found.shown()} and cannot be part of a string.")
        value = found.value if isinstance(found.value, str) else plain_text(found.value)
        return Node(value, "", None, found.source)

    def lookup(self, name: str) -> Node:
        if name.startswith(FUNCTIONS):
            return self.environment(name, is_text=name.startswith("env_text:"))
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
    may_add: Collection[str] = RUN_KEYS,
    folder: str | Path | None = None,
) -> Config:
    """Read a file with its includes, apply overrides, resolve variables; every mistake is in one
    ConfigError.

    Args:
        path: the YAML file.
        overrides: `a.b=1` changes, `+a.new=1` adds, `++a.b=1` either, `~a.b` removes;
            `callbacks.0.decay=0.9` by index.
        environ: the variables of `${env:NAME}`.
        may_add: top-level keys that an override may set although the file does not, without a `+`.
        folder: where the modules that kinds name are, if neither beside the file nor where its
            `modules:` says.

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
            message = (
                "has several values, which means a sweep of several runs; in quotes it is one "
                "string: 'key=\"a,b\"'."
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
        message = (
            f"is {node.shown()}; expected a folder that contains the file, such as `..` or `../..`."
        )
        raise ConfigError([Problem(node.file, node.line, MODULES, message)])
    return found
