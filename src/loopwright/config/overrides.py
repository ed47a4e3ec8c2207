"""Changes from the command line: `a.b=1`, `+a.new=1`, `++a.b=1`, `~a.b`, and several values that
make a sweep."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from ..text import nearest
from .tree import COMMAND_LINE, ConfigError, Key, Node, Problem, child_of, join_key
from .yaml import parse_scalar, read_text

RANGE = re.compile(r"range\(([^()]*)\)")
MAX_RANGE = 10_000


@dataclass(frozen=True, slots=True)
class Override:
    """One change. `mark` is "" (change), "+" (add), "++" (either) or "~" (remove); `values` has
    several in a sweep."""

    key: str
    mark: str
    values: tuple[Node, ...]
    text: str
    file: str = COMMAND_LINE
    line: int | None = None

    @property
    def is_sweep(self) -> bool:
        return len(self.values) > 1

    def error(self, message: str) -> ConfigError:
        where = self.text if self.file == COMMAND_LINE else self.key
        return ConfigError([Problem(self.file, self.line, where, message)])


def parse_override(text: str) -> Override:
    """An override from its text; raises ConfigError."""
    match = re.fullmatch(r"(\+\+|\+|~|)([^=\s+~][^=]*?)\s*(=(.*))?", text, re.S)
    if match is None or (match[3] is None) != (match[1] == "~"):
        what = "is not an override: write key=value, +key=value to add, or ~key to remove a key."
        raise ConfigError([Problem(COMMAND_LINE, None, text, what)])
    if match[1] == "~":
        return Override(match[2], "~", (), text)
    try:
        values = tuple(value for part in split_commas(match[4]) for value in parse_values(part))
    except ConfigError as error:
        raise ConfigError(
            [Problem(COMMAND_LINE, None, text, found.message) for found in error.problems]
        ) from None
    return Override(match[2], match[1], values, text)


def split_commas(text: str) -> list[str]:
    """The parts between commas that are outside brackets and quotes; a trailing comma makes no
    part."""
    parts = []
    depth = 0
    quote = ""
    start = 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and not text[start:position].strip(" ([{,:"):
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    last = text[start:]
    return [*parts, last] if last.strip() or not parts else parts


def parse_values(text: str) -> list[Node]:
    """One value as YAML, or the values of `range(start, stop[, step])`."""
    match = RANGE.fullmatch(text.strip())
    if match is None:
        return [read_text(text.strip(), COMMAND_LINE, has_lines=False)]
    return [Node(value, COMMAND_LINE, None) for value in parse_range(match[1])]


def parse_range(text: str) -> list[int | float]:
    """The numbers of a range, its end left out as in Python; the step may be a fraction."""
    numbers = [parse_scalar(part.strip()) for part in text.split(",")]
    bounds = [n for n in numbers if isinstance(n, int | float) and math.isfinite(n)]
    has_words = len(bounds) != len(numbers) or any(isinstance(n, bool) for n in bounds)
    if has_words or len(bounds) not in (2, 3):
        raise _range_error(text, "takes two or three numbers: range(start, stop[, step]).")
    start, stop, step = bounds if len(bounds) == 3 else (*bounds, 1)
    if step == 0:
        raise _range_error(text, "has a step of 0, and would never end.")
    count = math.ceil(round((stop - start) / step, 9))
    if not 0 < count <= MAX_RANGE:
        raise _range_error(text, f"has {max(count, 0)} values; expected 1 to {MAX_RANGE}.")
    values = [start + index * step for index in range(count)]
    # 0.30000000000000004 as 0.3: what the user would have written
    return values if isinstance(step, int) else [float(f"{value:.12g}") for value in values]


def _range_error(text: str, message: str) -> ConfigError:
    return ConfigError([Problem(COMMAND_LINE, None, "", f"range({text}) {message}")])


def apply_override(root: Node, override: Override, may_add: Collection[str] = ()) -> None:
    """Change the tree; raises ConfigError where the key is not there, or is although it was to be
    added."""
    *above, last = _split(root, override.key)
    node = root
    for index, part in enumerate(above):
        child = child_of(node, part)
        if child is None and not override.mark.startswith("+"):
            raise _unknown(node, part, override, above[:index], ())
        new = Node({}, override.file, override.line)
        node = _added(node, part, new, override, above[:index]) if child is None else child
    if override.mark == "~":
        _remove(node, last, override, above)
    else:
        _set(node, last, override, above, may_add)


def _split(root: Node, key: str) -> list[str]:
    """The parts of a dotted key, where a mapping's own key may contain dots."""
    parts = key.split(".")
    node = root
    result: list[str] = []
    while parts:
        joined = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        found = next((name for name in joined if child_of(node, name) is not None), None)
        if found is None:
            return result + parts
        result.append(found)
        parts = parts[found.count(".") + 1 :]
        node = child_of(node, found) or node
    return result


def _set(
    node: Node, last: str, override: Override, above: list[str], may_add: Collection[str]
) -> None:
    value = override.values[0].copy()
    existing = child_of(node, last)
    if existing is None:
        if not override.mark and (above or last not in may_add):
            raise _unknown(node, last, override, above, may_add)
        _added(node, last, value, override, above)
        return
    if override.mark == "+":
        raise override.error(f"{override.key} exists already: leave out the + to change it.")
    existing.value = value.value
    existing.source = value.source
    existing.file = override.file
    existing.line = override.line


def _added(node: Node, part: str, value: Node, override: Override, above: list[str]) -> Node:
    """Put a new key into a mapping, or an item at the end of a list."""
    if isinstance(node.value, list):
        if part != str(len(node.value)):
            raise override.error(
                f"{'.'.join(above)} is a list: {_indices(node)}, and +{len(node.value)} adds one."
            )
        node.value.append(value)
    elif isinstance(node.value, dict):
        node.value[part] = value
    elif node.value is None:
        node.value = {part: value}
    else:
        raise override.error(f"{'.'.join(above)} is {node.shown()}, and has no keys to add to.")
    return value


def _remove(node: Node, last: str, override: Override, above: list[str]) -> None:
    existing = child_of(node, last)
    if existing is None:
        raise _unknown(node, last, override, above, ())
    if isinstance(node.value, list):
        del node.value[int(last)]
        return
    key: Key = next(name for name, child in node.value.items() if child is existing)
    del node.value[key]


def _unknown(
    node: Node, part: str, override: Override, above: list[str], may_add: Collection[str]
) -> ConfigError:
    where = ".".join(above)
    if isinstance(node.value, list):
        return override.error(f"{where} is a list and has no {part}: {_indices(node)}.")
    if not isinstance(node.value, dict):
        return override.error(f"{where} is {node.shown()}, and has no key {part}.")
    known = [str(name) for name in node.value] + [name for name in may_add if not above]
    missing = f"the config has no key {join_key(where, part)}; {nearest(part, known)}"
    add = f"\nTo add it: +{override.key}=..." if override.mark == "" else ""
    return override.error(missing + add)


def _indices(node: Node) -> str:
    last = len(node.value) - 1
    return "it is empty" if last < 0 else f"its indices are 0 to {last}"
