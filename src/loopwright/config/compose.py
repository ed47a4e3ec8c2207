"""From a file to a resolved config: its `defaults:` are included, overrides of the command line
applied, `${...}` replaced."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..run.files import MAX_NODES
from ..text import nearest
from .tree import COMMAND_LINE, ConfigError, Node, Problem, child_of, collecting, descend, join_key
from .yaml import parse_scalar, plain_text, read_file, read_text, write_yaml

DEFAULTS = "defaults"
REMOVE = "~"
REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
ENVIRONMENT = re.compile(r"env:\s*([A-Za-z_][A-Za-z0-9_]*)\s*(,.*)?", re.S)
OVERRIDE = re.compile(r"(\+\+|\+|~|)([^=\s+~][^=]*?)\s*(=(.*))?", re.S)
RANGE = re.compile(r"range\(([^()]*)\)")
MAX_RANGE = 10_000
MAX_TEXT = 1_000_000
MODULES = "modules"
RUN_KEYS = ("name", "output_path", "resume", "seed", "tags")  # which an override may add


def read_with_includes(path: Path, trail: tuple[Path, ...] = ()) -> Node:
    """A file merged over its included files, in the order in which it lists them."""
    root = read_file(path)
    trail = (*trail, path.resolve())
    included = root.value.pop(DEFAULTS, None)
    merged = Node({}, root.file, root.line)
    problems: list[Problem] = []
    items = [] if included is None else [included]
    if included is not None and isinstance(included.value, list):
        items = included.value
    for item in items:
        # each with the key under which its content goes
        named = item.value if isinstance(item.value, dict) else {"": item}
        for key, file in named.items():
            parts = str(key).split(".") if key else []
            with collecting(problems):
                content = _included(file, path, trail)
                for part in reversed(parts):
                    content = Node({part: content}, file.file, file.line)
                merged = merge(merged, content)
    if problems:
        raise ConfigError(problems)
    return merge(merged, root)


def _included(item: Node, path: Path, trail: tuple[Path, ...]) -> Node:
    if not isinstance(item.value, str):
        what = f"is {item.shown()}; expected the name of a YAML file, or a list of names."
        raise item.error(DEFAULTS, what)
    target = path.parent / item.value
    if target.resolve() in trail:
        names = " -> ".join(file.name for file in (*trail, target))
        raise item.error(DEFAULTS, f"{item.value} includes itself: {names}.")
    if not target.is_file():
        what = f"there is no file {item.value}; the name is relative to the file that includes it."
        raise item.error(DEFAULTS, what)
    return read_with_includes(target, trail)


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
    whole = Node(None, COMMAND_LINE, None)
    match = OVERRIDE.fullmatch(text)
    if match is None or (match[3] is None) != (match[1] == "~"):
        what = "is not an override: write key=value, +key=value to add, or ~key to remove a key."
        raise whole.error(text, what)
    values: list[Node] = []
    for part in split_commas(match[4]) if match[4] is not None else ():
        try:
            numbers = parse_range(part)
            if numbers is None:
                values.append(read_text(part.strip(), COMMAND_LINE, has_lines=False))
            else:
                values += [Node(number, COMMAND_LINE, None) for number in numbers]
        except ConfigError as error:
            raise ConfigError(
                whole.problem(text, each.message) for each in error.problems
            ) from None
        except ValueError as error:
            raise whole.error(text, str(error)) from None
    return Override(match[2], match[1], tuple(values), text)


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


def parse_range(text: str) -> list[int | float] | None:
    """The numbers of `range(start, stop[, step])`, its end left out as in Python; the step may be a
    fraction. None of other text; raises ValueError."""
    match = RANGE.fullmatch(text.strip())
    if match is None:
        return None
    bounds: list[Any] = []
    for part in match[1].split(","):
        bound = parse_scalar(part.strip())
        if type(bound) in (int, float) and math.isfinite(bound):  # type: ignore[arg-type]
            bounds.append(bound)
    if len(bounds) != match[1].count(",") + 1 or len(bounds) not in (2, 3):
        raise ValueError(f"{match[0]} takes two or three numbers: range(start, stop[, step]).")
    start, stop = bounds[:2]
    step = bounds[2] if len(bounds) == 3 else 1
    count = math.ceil(round((stop - start) / step, 9)) if step else 0
    if not 0 < count <= MAX_RANGE:
        raise ValueError(f"{match[0]} has {max(count, 0)} values; expected 1 to {MAX_RANGE}.")
    values = [start + index * step for index in range(count)]
    if isinstance(step, int):
        return values
    # 0.30000000000000004 as 0.3: what the user would have written
    return [float(f"{value:.12g}") for value in values]


def apply_override(root: Node, override: Override) -> None:
    """Change the tree; raises ConfigError where the key is not there, or is although it was to be
    added."""
    parts = _split(root, override.key)
    node = root
    above = root
    for index, part in enumerate(parts):
        above = node
        child = child_of(above, part)
        where = ".".join(parts[:index])
        if child is None:
            is_run_key = override.mark == "" and len(parts) == 1 and part in RUN_KEYS
            if not is_run_key and not override.mark.startswith("+"):
                raise _unknown(above, part, override, where)
            child = Node({}, override.file, override.line)
            _add(above, part, child, override, where)
        elif override.mark == "+" and index == len(parts) - 1:
            raise override.error(f"{override.key} exists already: leave out the + to change it.")
        node = child
    if override.mark != "~":
        value = override.values[0].copy()
        node.value = value.value
        node.source = value.source
        node.file = override.file
        node.line = override.line
    elif isinstance(above.value, list):
        del above.value[int(parts[-1])]
    else:
        above.value = {name: child for name, child in above.value.items() if child is not node}


def _split(root: Node, key: str) -> list[str]:
    """The parts of a dotted key, where a mapping's own key may contain dots."""
    parts = key.split(".")
    node = root
    result: list[str] = []
    while parts:
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            child = child_of(node, name)
            if child is not None:
                break
        else:
            return result + parts
        result.append(name)
        parts = parts[count:]
        node = child
    return result


def _add(node: Node, part: str, new: Node, override: Override, where: str) -> None:
    """Put a new key into a mapping, or an item at the end of a list."""
    if isinstance(node.value, list):
        if part != str(len(node.value)):
            raise _unknown(node, part, override, where)
        node.value.append(new)
    elif isinstance(node.value, dict):
        node.value[part] = new
    elif node.value is None:
        node.value = {part: new}
    else:
        raise _unknown(node, part, override, where)


def _unknown(node: Node, part: str, override: Override, where: str) -> ConfigError:
    if not isinstance(node.value, dict):
        return override.error(f"{where} is {node.shown()}, and has no {part}.")
    known = [str(name) for name in node.value] + [name for name in RUN_KEYS if not where]
    missing = f"the config has no key {join_key(where, part)}; {nearest(part, known)}"
    add = f"\nTo add it: +{override.key}=..." if override.mark == "" else ""
    return override.error(missing + add)


class UnresolvedError(Exception):
    """A variable that has no value; the message says why."""


class Resolver:
    """Makes a tree in which the variables have values, and collects the variables without one."""

    def __init__(self, root: Node, environ: Mapping[str, str]) -> None:
        self.root = root
        self.environ = environ
        self.problems: list[Problem] = []
        # what became of each node, by identity; what was resolved stays what it is
        self.done: dict[int, Node] = {}
        self.open: list[str] = []  # keys that are being resolved
        self.count = 0

    def resolve(self, node: Node, key: str = "") -> Node:
        """A node with all below it, resolved."""
        if id(node) in self.done:
            return self.done[id(node)]
        new = Node(node.value, node.file, node.line, node.source)
        if isinstance(node.value, dict):
            new.value = {
                name: self.resolve(child, join_key(key, name)) for name, child in node.children()
            }
        elif isinstance(node.value, list):
            new.value = [self.resolve(child, join_key(key, i)) for i, child in node.children()]
        elif isinstance(node.value, str) and "${" in node.value:
            self.open.append(key)
            try:
                new.value, new.source = self.replaced(node.value)
            except UnresolvedError as error:
                self.problems.append(node.problem(key, str(error)))
                new.value = None
            self.open.pop()
        self.done[id(node)] = new
        self.done[id(new)] = new
        return new

    def replaced(self, text: str) -> tuple[Any, str | None]:
        """The value of a text, of any type where a variable is all of it, else text; and how it is
        written where that must not show what it resolved to."""
        whole = REFERENCE.fullmatch(text)
        if whole is not None and whole[1] is not None:
            found = self.lookup(whole[1].strip(), is_text=False)
            return found.value, found.source
        values = []
        sources = []
        is_secret = False
        end = 0
        for match in REFERENCE.finditer(text):
            value, source = self.part(match)
            before = text[end : match.start()]
            values += [before, value]
            sources += [before, escaped(value) if source is None else source]
            is_secret |= source is not None
            end = match.end()
        value = "".join(values) + text[end:]
        if len(value) > MAX_TEXT:
            raise UnresolvedError("becomes a string of more than a million characters.")
        return value, "".join(sources) + text[end:] if is_secret else None

    def part(self, match: re.Match[str]) -> tuple[str, str | None]:
        """The text that takes the place of one variable, and its source."""
        if match[0] == "$${":
            return "${", None
        if match[1] is None:
            raise UnresolvedError(
                "has a ${ that is not closed, or one variable inside another; to write the "
                "characters ${, use $${."
            )
        found = self.lookup(match[1].strip(), is_text=True)
        if isinstance(found.value, dict | list):
            raise UnresolvedError(f"{match[0]} is {found.shown()} and cannot be part of a string.")
        value = found.value if isinstance(found.value, str) else plain_text(found.value)
        return value, found.source

    def lookup(self, name: str, *, is_text: bool) -> Node:
        """The value of a variable; one of the environment is read as a number or word like any
        other unless it is to be text."""
        variable = ENVIRONMENT.fullmatch(name)
        if variable is None:
            if ":" in name or not name:
                raise UnresolvedError(
                    f"${{{name}}}: expected ${{key}}, ${{env:NAME}} or ${{env:NAME,default}}."
                )
            return self.referred(name)
        text = self.environ.get(variable[1])
        if text is None:
            if variable[2] is None:
                raise UnresolvedError(
                    f"the environment variable {variable[1]} is not set: set it, or give a "
                    f"default: ${{env:{variable[1]},...}}."
                )
            text = variable[2][1:].strip()
        value: Any = text
        if not is_text:
            try:
                value = parse_scalar(text)
            except ValueError:  # more digits than a number may have
                value = text
        return Node(value, "", None, f"${{{name}}}")

    def referred(self, name: str) -> Node:
        """The value of another key, its own variables resolved first."""
        target = self.find(name)
        # whether resolving it would come back to where it is used
        if any(key == name or key.startswith(f"{name}.") for key in self.open):
            raise UnresolvedError(
                f"${{{name}}} refers to itself: {' -> '.join([*self.open, name])}."
            )
        self.open.append(name)
        try:
            found = self.resolve(target, name)
        finally:
            self.open.pop()
        self.count += count_nodes(found, MAX_NODES)
        if self.count > MAX_NODES:
            raise UnresolvedError("the variables expand to more values than a config may have.")
        return found

    def find(self, name: str) -> Node:
        """The node that a dotted name means; what is on the way may be a variable itself."""
        found = descend(self.root, name)
        if found is not None:
            return found
        node = self.root
        path = ""
        for part in name.split("."):
            child = child_of(node, part)
            if child is None:
                known = [str(key) for key, _ in node.children()]
                where = f"{path} has no {part}" if path else f"the config has no key {part}"
                raise UnresolvedError(f"${{{name}}}: {where}; {nearest(part, known)}")
            node = child
            path = join_key(path, part)
            if isinstance(node.value, str) and path not in self.open:
                node = self.resolve(node, path)
        return node


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
            apply_override(root, override)
    resolver = Resolver(root, environ)
    root = resolver.resolve(root)
    found += resolver.problems
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
