"""A resolved config as YAML with the origin of each value behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from ..config import Config

MAX_COLUMN = 60


def with_origins(config: Config) -> str:
    """The text of `config.to_yaml()`, with `# file:line` behind the lines whose value comes from there."""
    text = config.to_yaml()
    lines = text.splitlines()
    origins: dict[int, str] = {}
    for line, key in _keys(yaml.compose(text, Loader=yaml.SafeLoader), ""):
        origins[line] = origin_text(*config.place(key))
    column = min(max((len(lines[line]) for line in origins), default=0), MAX_COLUMN)
    for line, origin in origins.items():
        lines[line] = f"{lines[line]:<{column}}  # {origin}"
    return "\n".join(lines) + "\n"


def origin_text(file: str, line: int | None) -> str:
    path = Path(file)
    shown = path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path
    return str(shown) if line is None else f"{shown}:{line}"


def _keys(node: yaml.Node | None, prefix: str) -> Iterator[tuple[int, str]]:
    """The line and dotted key of each value that ends on the line it begins on, so that a comment can follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            yield from _entry(value, f"{prefix}.{key.value}" if prefix else str(key.value))
    elif isinstance(node, yaml.SequenceNode) and not node.flow_style:
        for number, item in enumerate(node.value):
            yield from _entry(item, f"{prefix}.{number}")


def _entry(value: yaml.Node, key: str) -> Iterator[tuple[int, str]]:
    is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    if is_block:
        yield from _keys(value, key)
    elif value.start_mark.line == value.end_mark.line:
        yield value.start_mark.line, key
