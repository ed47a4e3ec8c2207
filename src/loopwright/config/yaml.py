"""YAML text to nodes with line numbers, and back: scalars as YAML 1.2 reads them, and data only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..run.files import MAX_BYTES, MAX_DEPTH, MAX_NODES
from .tree import ConfigError, Key, Node, Problem, Scalar, join_key

TAG = "tag:yaml.org,2002:"
WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
MERGE = "<<"
PLAIN = "plain"
STRING = f"{TAG}str"
SIMPLE = re.compile(r"[A-Za-z_./][-A-Za-z0-9_./+=@ ]*[-A-Za-z0-9_./+=@]|[A-Za-z_./]")


class TextLoader(yaml.SafeLoader):
    """PyYAML's parser with plain scalars marked as such, so that this module alone says what they
    mean."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return PLAIN if implicit[0] else STRING
        return f"{TAG}seq" if kind is yaml.SequenceNode else f"{TAG}map"


def read_file(path: Path) -> Node:
    """The content of a YAML file, which must be a mapping; an empty file is an empty one."""
    whole = Node(None, str(path), None)
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise whole.error("", f"has {len(data)} bytes: too large for a config.")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise whole.error("", f"cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        whole.line = data[: error.start].count(b"\n") + 1
        raise whole.error("", "is not UTF-8 text: save it as UTF-8.") from None
    node = read_text(text, whole.file)
    if node.value is None:
        node.value = {}
    if not isinstance(node.value, dict):
        what = "a config is a mapping of keys to values, such as `seed: 0`"
        raise node.error("", f"is {node.shown()}; {what}.")
    return node


def read_text(text: str, file: str, *, has_lines: bool = True) -> Node:
    """The content of YAML text; raises ConfigError with all that is wrong with it."""
    line: int | None = None
    try:
        loader = TextLoader(text)
        try:
            return Reader(file, has_lines).read(loader.get_single_node())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        what = ", ".join(filter(None, (error.context, error.problem)))
        message = f"is not YAML: {what}{_advice(error, text)}"
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"has a character that YAML does not allow ({error.character!r})."
    except RecursionError:
        message = "is nested too deeply for a config."
    except ConfigError:
        raise
    except (ValueError, OverflowError) as error:  # PyYAML on an escape that it did not expect
        message = f"is not YAML: {error}."
    raise Node(None, file, line if has_lines else None).error("", message)


def _advice(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "${" in line and error.context and "flow" in error.context:
        return '; inside { } and [ ] a variable is quoted: "${name}".'
    return "."


class Reader:
    """Turns PyYAML's graph of nodes into a tree of ours, and collects what is wrong on the way."""

    def __init__(self, file: str, has_lines: bool = True) -> None:
        self.file = file
        self.has_lines = has_lines
        self.problems: list[Problem] = []
        self.count = 0
        self.open: set[int] = set()  # nodes that are being read, to see one that contains itself

    def read(self, root: yaml.Node | None) -> Node:
        empty = Node(None, self.file, 1 if self.has_lines else None)
        node = empty if root is None else self.node(root, "")
        if self.problems:
            raise ConfigError(self.problems)
        return node

    def node(self, node: yaml.Node, key: str) -> Node:
        self.count += 1
        if self.count > MAX_NODES:
            what = "aliases (*name) expand to more values than a config may have."
            raise self.made(node, None).error(key, what)
        if len(self.open) > MAX_DEPTH:
            raise self.made(node, None).error("", "is nested too deeply for a config.")
        if id(node) in self.open:
            self.add(node, key, "contains itself through an alias (*name).")
            return self.made(node, None)
        self.open.add(id(node))
        try:
            return self.made(node, self.value(node, key))
        finally:
            self.open.discard(id(node))

    def value(self, node: yaml.Node, key: str) -> Any:
        tag = node.tag or ""
        if isinstance(node, yaml.MappingNode) and tag == f"{TAG}map":
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode) and tag == f"{TAG}seq":
            return [
                self.node(child, join_key(key, index)) for index, child in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode) and tag in (PLAIN, STRING):
            return self.scalar(node, key)
        self.add(node, key, f"has the tag {tag.replace(TAG, '!!')}: a config contains only data.")
        return None

    def scalar(self, node: yaml.ScalarNode, key: str) -> Scalar:
        text = str(node.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            self.add(node, key, "has half of a character (a surrogate escape such as \\ud800).")
            return None
        if node.tag == STRING:
            return text
        try:
            return parse_scalar(text)
        except ValueError:
            self.add(node, key, "is a number with more digits than can be read.")
            return None

    def mapping(self, node: yaml.MappingNode, key: str) -> dict[Key, Node]:
        own: dict[Key, Node] = {}
        merged: dict[Key, Node] = {}
        for key_node, value_node in node.value:
            name = self.key(key_node, key)
            if name is None:
                continue
            if name == MERGE and key_node.tag == PLAIN:
                for other, child in self.merged(value_node, key).items():
                    merged.setdefault(other, child)
                continue
            child = self.node(value_node, join_key(key, name))
            child.line = self.line(key_node)
            if name in own:
                first = f" (first in line {own[name].line})" if self.has_lines else ""
                what = f"the key {name} appears twice{first}: remove one."
                self.add(key_node, join_key(key, name), what)
            own.setdefault(name, child)
        return {**merged, **own} if merged else own

    def key(self, node: yaml.Node, above: str) -> Key | None:
        """A key as text or a whole number; the words that YAML reads as other things are refused as
        keys."""
        value: Scalar = None
        if isinstance(node, yaml.ScalarNode) and node.tag in (PLAIN, STRING):
            value = self.scalar(node, above)
        if isinstance(value, bool) or not isinstance(value, str | int):
            shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else "that is no text"
            what = "a key is text or a whole number; put it in quotes."
            self.add(node, above, f"has a key {shown}: {what}")
            return None
        return value

    def merged(self, node: yaml.Node, key: str) -> dict[Key, Node]:
        """The keys that `<<` merges in, of a mapping or a list of mappings; the first mapping
        wins."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[Key, Node] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                what = "`<<` takes an alias of a mapping (<<: *name), or a list of them."
                self.add(source, key, what)
            elif id(source) not in self.open:
                result = {**self.node(source, key).value, **result}
        return result

    def made(self, node: yaml.Node, value: Any) -> Node:
        return Node(value, self.file, self.line(node))

    def line(self, node: yaml.Node) -> int | None:
        return node.start_mark.line + 1 if self.has_lines else None

    def add(self, node: yaml.Node, key: str, message: str) -> None:
        self.problems.append(Problem(self.file, self.line(node), key, message))


def parse_scalar(text: str) -> Scalar:
    """What a plain (unquoted) scalar means in YAML 1.2: `1e-3` is a number; `no`, `on` and `12:30`
    are text."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


class TextDumper(yaml.SafeDumper):
    """PyYAML's writer, which quotes what YAML 1.1 does not take as text; here also what YAML 1.2
    does not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents the items of a list below their key."""
        super().increase_indent(flow, False)

    def text(self, text: str) -> yaml.Node:
        is_plain = SIMPLE.fullmatch(text) and isinstance(parse_scalar(text), str)
        return self.represent_scalar(STRING, text, style=None if is_plain else '"')

    def list(self, items: list[Any]) -> yaml.Node:
        is_flat = len(items) <= 8 and not any(isinstance(item, dict | list) for item in items)
        return self.represent_sequence(f"{TAG}seq", items, flow_style=is_flat)


TextDumper.add_representer(str, TextDumper.text)
TextDumper.add_representer(list, TextDumper.list)


def write_yaml(root: Node) -> str:
    """A document with the same values; whatever hides its value is written as its source."""
    written = _written(root)
    return yaml.dump(
        written,
        Dumper=TextDumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=120,
    )


def _written(node: Node) -> Any:
    if node.source is not None:
        return node.source
    if isinstance(node.value, dict):
        return {key: _written(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_written(child) for child in node.value]
    return node.value.replace("${", "$${") if isinstance(node.value, str) else node.value


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
    # so that YAML 1.1 sees a number too
    return text if "." in text or "e" not in text else text.replace("e", ".0e")
