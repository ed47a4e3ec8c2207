"""Plain values that know their file and line, and mistakes that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..text import counted

COMMAND_LINE = "command line"
Scalar = str | int | float | bool | None
Key = str | int


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is, and what was found, was expected and can be done about it."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        head = f"{place}: {self.key}" if self.key else place
        return head + "\n    " + self.message.replace("\n", "\n    ")


class ConfigError(ConfigurationError):
    """A config cannot be used; `problems` has every mistake that was found, and `str()` is the
    whole report.

    >>> from loopwright.config import ConfigError, Problem
    >>> print(ConfigError([Problem("run.yaml", 3, "seed", "is null; expected a whole number.")]))
    1 mistake in the configuration:
    run.yaml:3: seed
        is null; expected a whole number.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(problems))
        head = f"{counted(len(self.problems), 'mistake')} in the configuration:"
        super().__init__("config", "\n".join([head, *map(str, self.problems)]))

    def __str__(self) -> str:
        return str(self.args[1])  # the last mistake ends the report, not a code


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Add the mistakes of a ConfigError to a list, instead of raising it."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


@dataclass(slots=True)
class Node:
    """A value with its origin.

    source: how it is written where that must not show what it resolved to.
    key: where it lies in the whole; known in a copy.
    """

    value: Any  # a Scalar, dict[Key, Node] or list[Node]
    file: str
    line: int | None
    source: str | None = None
    key: str = ""

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def problem(self, key: str, message: str) -> Problem:
        """A mistake at this value."""
        return Problem(self.file, self.line, key, message)

    def error(self, key: str, message: str) -> ConfigError:
        """The error about a mistake at this value."""
        return ConfigError([self.problem(key, message)])

    def children(self) -> Iterator[tuple[Key, Node]]:
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)

    def copy(self, key: str = "") -> Node:
        """The same values and origins in new nodes, each of which knows its key."""
        value = self.value
        copies = {name: child.copy(join_key(key, name)) for name, child in self.children()}
        if isinstance(value, dict):
            value = copies
        elif isinstance(value, list):
            value = list(copies.values())
        return Node(value, self.file, self.line, self.source, key)

    def shown(self) -> str:
        """The value for a message: short, in the words of YAML, and without what the environment
        supplied."""
        if self.source is not None:
            return self.source
        if isinstance(self.value, dict):
            keys = ", ".join(map(str, self.value))
            return f"a mapping with the keys {keys}" if keys else "an empty mapping"
        if isinstance(self.value, list):
            return f"a list of {len(self.value)}"
        return shown_scalar(self.value)


def shown_scalar(value: Scalar) -> str:
    """A scalar with the name of its type, for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return f"the text {text!r}"
    if isinstance(value, float):
        return str(value)
    return f"{value} (a whole number)" if value.bit_length() < 200 else "a very long whole number"


def to_node(value: Any, file: str, line: int | None) -> Node:
    """A plain value as nodes that come from one line."""
    if isinstance(value, dict):
        return Node({key: to_node(child, file, line) for key, child in value.items()}, file, line)
    if isinstance(value, list | tuple):
        return Node([to_node(child, file, line) for child in value], file, line)
    return Node(value, file, line)


def join_key(prefix: str, key: Key) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def descend(node: Node, key: str) -> Node | None:
    """The node at a dotted key, or None; a mapping's own key may contain dots."""
    if not key:
        return node
    parts = key.split(".")
    for count in range(1, len(parts) + 1):
        child = child_of(node, ".".join(parts[:count]))
        if child is not None:
            found = descend(child, ".".join(parts[count:]))
            if found is not None:
                return found
    return None


def child_of(node: Node, part: str) -> Node | None:
    """The child with this key or index, both as text."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            if str(key) == part:
                return child  # type: ignore[no-any-return]
    is_index = part.lstrip("-").isdecimal() and part.isascii()
    if isinstance(node.value, list) and is_index:
        size = len(node.value)
        index = int(part)
        if -size <= index < size:
            return node.value[index]  # type: ignore[no-any-return]
    return None
