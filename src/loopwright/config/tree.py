"""A resolved config: plain values that know their file and line, and mistakes that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..text import nearest

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
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        super().__init__("\n".join([f"{count} in the configuration:", *map(str, self.problems)]))


@dataclass(slots=True)
class Node:
    """A value with its origin. `source` is how it is written where that must not show what it
    resolved to."""

    value: Any  # a Scalar, dict[Key, Node] or list[Node]
    file: str
    line: int | None
    source: str | None = None

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def children(self) -> Iterator[tuple[Key, Node]]:
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)

    def copy(self) -> Node:
        """The same values and origins in new nodes."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.copy() for key, child in value.items()}
        elif isinstance(value, list):
            value = [child.copy() for child in value]
        return Node(value, self.file, self.line, self.source)

    def shown(self) -> str:
        """The value for a message: short, in the words of YAML, and without what the environment
        supplied."""
        if self.source is not None:
            return self.source
        if isinstance(self.value, dict):
            return (
                f"a mapping with the keys {', '.join(map(str, self.value))}"
                if self.value
                else "an empty mapping"
            )
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
    text = (
        str(value)
        if not isinstance(value, int) or value.bit_length() < 200
        else "a very long number"
    )
    return f"{text} (a whole number)" if isinstance(value, int) else text


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
        if part in node.value:
            return node.value[part]  # type: ignore[no-any-return]
        return next((child for key, child in node.value.items() if str(key) == part), None)
    if isinstance(node.value, list) and part.lstrip("-").isdecimal() and part.isascii():
        index = int(part)
        return node.value[index] if -len(node.value) <= index < len(node.value) else None
    return None


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
            file, line = self.place(key)
            hint = nearest(key.split(".")[-1], self._siblings(key))
            raise ConfigError(
                [Problem(file, line, join_key(self.key, key), f"there is no such key; {hint}")]
            )
        return Config(found, self.folder, join_key(self.key, key) if self.key else key)

    def problem(self, key: str, message: str) -> Problem:
        """A mistake at a dotted key, for a program that checks more than types."""
        file, line = self.place(key)
        return Problem(file, line, join_key(self.key, key) if key else self.key, message)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """A file that loads to this tree; what came from the environment is still `${env:NAME}` in
        it.

        path: where the file will be. If that is below the folder of the modules that kinds name,
        `modules:` is added, so that it runs from there too; otherwise pass `folder=` to
        `load_config`.
        """
        from .yaml import write_yaml

        above = None if path is None else self._way_up(Path(path).resolve().parent)
        if above is None:
            return write_yaml(self.root)
        line = Node(above, self.root.file, None)
        return write_yaml(
            Node({**self.root.value, "modules": line}, self.root.file, self.root.line)
        )

    def _way_up(self, start: Path) -> str | None:
        """`../..` from a folder to that of the modules; None if they are the same, or it is not
        above."""
        if (
            start == self.folder
            or not start.is_relative_to(self.folder)
            or not isinstance(self.root.value, dict)
        ):
            return None
        return "/".join([".."] * len(start.relative_to(self.folder).parts))

    def _siblings(self, key: str) -> list[str]:
        parent = descend(self.root, key.rpartition(".")[0])
        return [] if parent is None else [str(name) for name, _ in parent.children()]

    def __repr__(self) -> str:
        return f"Config({self.key or self.root.file!r}: {self.root.shown()})"
