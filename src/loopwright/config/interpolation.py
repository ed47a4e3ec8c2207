"""Variables: `${model.width}` is the value of another key, `${env:NAME,default}` comes from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..run.config_file import MAX_NODES
from .problems import ConfigError, Problem, nearest
from .reading import parse_scalar
from .tree import Node, child_of, descend, join_key
from .writing import plain_text

REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
FUNCTIONS = ("env:", "env_text:")
MAX_TEXT = 1_000_000


class UnresolvedError(Exception):
    """A variable that has no value; the message says why."""


class Resolver:
    """Replaces the variables in a tree, in place, and collects those that have no value."""

    def __init__(self, root: Node, environ: Mapping[str, str]) -> None:
        self.root = root
        self.environ = environ
        self.problems: list[Problem] = []
        self.done: dict[int, Node] = {}  # by identity; the nodes are held so that no identity is used again
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
        """Put the value in place of the text: of any type where a variable is all of it, else text."""
        text = node.value
        whole = REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            found = self.lookup(whole[1].strip())
            node.value, node.source = found.value, found.source
            return
        parts, end = [], 0
        for match in REFERENCE.finditer(text):
            parts += [Node(text[end : match.start()], "", None), self.part(match)]
            end = match.end()
        parts.append(Node(text[end:], "", None))
        node.value = "".join(part.value for part in parts)
        if len(node.value) > MAX_TEXT:
            raise UnresolvedError("becomes a text of more than a million characters.")
        if any(part.source is not None for part in parts):
            node.source = "".join(escaped(part.value) if part.source is None else part.source for part in parts)

    def part(self, match: re.Match[str]) -> Node:
        """The text that takes the place of one variable."""
        if match[0] == "$${":
            return Node("${", "", None)
        if match[1] is None:
            raise UnresolvedError(
                "has a ${ that is not closed, or one variable inside another; for the text ${ write $${."
            )
        name = match[1].strip()
        found = self.environment(name, is_text=True) if name.startswith(FUNCTIONS) else self.lookup(name)
        if isinstance(found.value, dict | list):
            raise UnresolvedError(f"{match[0]} is {found.shown()} and cannot be part of a text.")
        value = found.value if isinstance(found.value, str) else plain_text(found.value)
        return Node(value, "", None, found.source)

    def lookup(self, name: str) -> Node:
        if name.startswith(FUNCTIONS):
            return self.environment(name, is_text=name.startswith("env_text:"))
        if ":" in name or not name:
            raise UnresolvedError(f"${{{name}}}: expected ${{key}}, ${{env:NAME}} or ${{env:NAME,default}}.")
        return self.referred(name)

    def environment(self, name: str, *, is_text: bool) -> Node:
        """The value of an environment variable, which is read as a number or word like any other unless it is text."""
        variable, has_default, default = (part.strip() for part in name.partition(":")[2].partition(","))
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise UnresolvedError(f"${{{name}}}: expected ${{env:NAME}} or ${{env:NAME,default}}.")
        text = self.environ.get(variable)
        if text is None and not has_default:
            raise UnresolvedError(
                f"the environment variable {variable} is not set: set it, or give a default: ${{env:{variable},...}}."
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
            raise UnresolvedError(f"${{{name}}} refers to itself: {' -> '.join([*self.open, name])}.")
        self.open.append(name)
        try:
            self.visit(target, name)
        finally:
            self.open.pop()
        self.count += count_nodes(target, MAX_NODES)
        if self.count > MAX_NODES:
            raise UnresolvedError("the variables expand to more values than a config has.")
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
        node, path = self.root, ""
        for part in name.split("."):
            if (found := descend(self.root, name)) is not None:
                return found
            child = child_of(node, part)
            if child is None:
                known = [str(key) for key, _ in node.children()]
                where = f"{path} has no {part}" if path else f"the config has no key {part}"
                raise UnresolvedError(f"${{{name}}}: {where}; {nearest(part, known)}")
            node, path = child, join_key(path, part)
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
    total, waiting = 0, [node]
    while waiting and total <= limit:
        current = waiting.pop()
        total += 1
        waiting.extend(child for _, child in current.children())
    return total
