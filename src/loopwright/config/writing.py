"""Nodes to YAML text that reads as the same nodes."""

from __future__ import annotations

import re
from typing import Any

import yaml

from .reading import TAG, parse_scalar
from .tree import Key, Node

STRING = f"{TAG}str"
SIMPLE = re.compile(r"[A-Za-z_./][-A-Za-z0-9_./+=@ ]*[-A-Za-z0-9_./+=@]|[A-Za-z_./]")


class TextDumper(yaml.SafeDumper):
    """PyYAML's writer with its own opinion on plain scalars taken away, so that this module says what is quoted."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        return f"{TAG}{'str' if kind is yaml.ScalarNode else 'seq' if kind is yaml.SequenceNode else 'map'}"

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents the items of a list below their key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_yaml(root: Node) -> str:
    """A document with the same values; whatever hides its value is written as its source."""
    return str(yaml.serialize(graph(root), Dumper=TextDumper, allow_unicode=True, width=120))


def graph(node: Node) -> yaml.Node:
    """The node as PyYAML's writer takes it."""
    if node.source is not None:
        return text_node(node.source, is_key=False)
    if isinstance(node.value, dict):
        pairs = [(key_node(key), graph(child)) for key, child in node.value.items()]
        return yaml.MappingNode(f"{TAG}map", pairs, flow_style=not pairs)
    if isinstance(node.value, list):
        items = [graph(child) for child in node.value]
        is_flat = all(isinstance(item, yaml.ScalarNode) for item in items) and len(items) <= 8
        return yaml.SequenceNode(f"{TAG}seq", items, flow_style=is_flat)
    if isinstance(node.value, str):
        return text_node(node.value.replace("${", "$${"), is_key=False)
    return yaml.ScalarNode(STRING, plain_text(node.value))


def key_node(key: Key) -> yaml.Node:
    return text_node(key, is_key=True) if isinstance(key, str) else yaml.ScalarNode(STRING, str(key))


def text_node(text: str, *, is_key: bool) -> yaml.Node:
    """Text without quotes where every reader of YAML, old or new, takes it as text."""
    is_plain = SIMPLE.fullmatch(text) and isinstance(parse_scalar(text), str) and not is_old_word(text)
    return yaml.ScalarNode(STRING, text, style=None if is_plain else '"')


def is_old_word(text: str) -> bool:
    """Whether a reader of YAML 1.1 would take this text as a truth value, a number or a date."""
    loader = yaml.SafeLoader("")
    try:
        tag: str = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return tag != STRING
    finally:
        loader.dispose()


def plain_text(value: int | float | bool | None) -> str:
    """A number or word as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text if "." in text or "e" not in text else text.replace("e", ".0e")  # so that YAML 1.1 sees a number too
