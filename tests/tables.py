"""Markdown tables of what users of a class see, from signatures, docstrings and fields: see
`tests.generated`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

LIMITS = (("ge", "from"), ("gt", "above"), ("le", "to"), ("lt", "below"))
REQUIRED = "required"
PLAIN = (  # types in words; aliases have to be named here
    (r"\b(nn|torch|program)\.", ""),
    (r"Callable\[(\.\.\.|\[\w*\]), \w+\]|\bEpochCallback\b", "function"),
    (r"\bDlKwargs\b", "dict or None"),
    (r"\bConfigSource\b", "path, dict, Config or None"),
    (r"\bCallbackLike\b", "TrainerCallback"),
    (r"\bIterable\[Track\]", "list of trackers"),
    (r"\bTrack\b", "tracker"),
    (r"\bMapping\[str, Mapping\[.*?\]\]", "dict of dicts"),
    (r"\bChanges\b", '"refuse" or "accept"'),
    (r"\bDisplay\b", '"auto" or "bar" or "lines" or "silent"'),
    (r"\bInterval\b", '"epoch" or "update"'),
    (r"\bMapping\[str, (\w+)\]", r"dict of \1"),
    (r"\b(Iterable|Sequence|list)\[Any\]", r"\1"),
    (r"\b(Iterable|Sequence|list)\[(.*?)\]", r"list of \2"),
    (r"\b(Iterable|Sequence)\b", "list"),
    (r"\bAny\b", "any"),
)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    assert all(cell for row in lines for cell in row), f"an empty cell in {lines}"
    first, *others = (f"| {' | '.join(row)} |" for row in lines)
    return "\n".join([first, "|" + "---|" * len(head), *others])


# Docstrings


def summary(value: Any) -> str:
    """The first paragraph of a docstring in one line."""
    text = inspect.getdoc(value) or ""
    assert text, f"{value} has no docstring"
    return " ".join(text.split("\n\n")[0].split())


def explained(value: Any) -> dict[str, str]:
    """The arguments that the section Args of a docstring explains."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(value) or "", re.M | re.S)
    entries = re.findall(
        r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section[1] if section else "", re.M | re.S
    )
    return {name: " ".join(text.split()) for name, text in entries}


def sentence(text: str) -> str:
    """When an event comes: its docstring without the word with which it begins."""
    text = text.removeprefix("Called ")
    return text[0].upper() + text[1:]


# Calls


def call(name: str, function: Callable[..., Any]) -> str:
    """A call as a user writes it: names and defaults, without types."""
    parameters: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(
            text.startswith("*") for text in parameters
        ):
            parameters.append("*")
        bare = str(parameter.replace(annotation=parameter.empty))
        parameters.append(
            re.sub(r"<class '.*?(\w+)'>|<function (\w+) at \w+>|<enum.*?>", r"\1\2", bare)
        )
    return f"{name}({', '.join(parameters)})"


def methods(kind: type, *names: str) -> str:
    """The named methods of a class, each with its signature and first paragraph."""
    rows = (
        (f"`{call(name, getattr(kind, name))}`", summary(getattr(kind, name))) for name in names
    )
    return table(("method", "what it does"), rows)


def attributes(kind: type) -> str:
    """The properties of a class."""
    found = [
        (name, value) for name, value in inspect.getmembers(kind) if isinstance(value, property)
    ]
    return table(
        ("attribute", "what it is"), ((f"`{n}`", summary(v.fget)) for n, v in found if n[0] != "_")
    )


def classes(*kinds: type) -> str:
    """Classes, each with the call that makes one."""
    return table(
        ("class", "what it does"),
        ((f"`{call(kind.__name__, kind)}`", summary(kind)) for kind in kinds),
    )


def events(kind: type, names: Iterable[str], *, whole: bool = False) -> str:
    """The events of a callback, with their arguments and when they come; `whole` shows all of their
    docstrings."""
    texts = {
        name: " ".join(inspect.getdoc(getattr(kind, name)).split())
        if whole
        else summary(getattr(kind, name))
        for name in names
    }
    rows = (
        (f"`{call(name, getattr(kind, name))}`", sentence(text)) for name, text in texts.items()
    )
    return table(("event", "when"), rows)


# Arguments and settings


def type_of(annotation: Any) -> str:
    """A type in words: `int or None`, `"a" or "b"`."""
    if isinstance(annotation, str):
        return written_type(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(type_of(part) for part in parts)
    if origin is Literal:
        return " or ".join(json.dumps(part) for part in parts)
    if origin is list:
        return "list" if type_of(parts[0]) == "any" else f"list of {type_of(parts[0])}"
    return {types.NoneType: "None", Any: "any"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def written_type(text: str) -> str:
    """A type in words, from the text of its annotation."""
    text = re.sub(r"\bLiteral\[([^\[\]]*)\]", lambda found: found[1].replace(", ", " or "), text)
    for long, short in PLAIN:
        text = re.sub(long, short, text)
    return text.replace(" | ", " or ")


def default_of(value: Any) -> str:
    """A default as a user writes it; that of an argument without one."""
    if value is inspect.Parameter.empty or value is dataclasses.MISSING:
        return REQUIRED
    if isinstance(value, tuple) and value and all(isinstance(one, type) for one in value):
        return ", ".join(f"`{one.__name__}`" for one in value)
    return f"`{value!r}`".replace("'", '"')


def arguments(function: Callable[..., Any]) -> str:
    """The arguments of a function or class, each with its type, default and meaning."""
    meanings = explained(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    assert list(meanings) == [p.name for p in parameters], f"{function}: Args are {list(meanings)}"
    return table(
        ("argument", "type", "default", "meaning"),
        (
            (f"`{p.name}`", type_of(p.annotation), default_of(p.default), meanings[p.name])
            for p in parameters
        ),
    )


def fields(kind: Any, before: str = "") -> str:
    """The fields of a dataclass, with the meanings in its docstring."""
    meanings = explained(kind)
    found = dataclasses.fields(kind)
    assert list(meanings) == [field.name for field in found], f"{kind}: Args are {list(meanings)}"
    rows = ((f"`{before}{f.name}`", type_of(f.type), _default(f), meanings[f.name]) for f in found)
    return table(("field", "type", "default", "meaning"), rows)


def _default(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory
    return default_of(field.default if made is dataclasses.MISSING else made())


def settings_of(kind: type[BaseModel], before: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of a pydantic model with its key, the groups resolved."""
    for name, field in kind.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from settings_of(type(field.default), f"{before}{name}.")
        else:
            yield f"{before}{name}", field


def setting_row(key: str, field: FieldInfo) -> tuple[str, str, str, str]:
    default = field.get_default(call_default_factory=True, validated_data={})
    return f"`{key}`", allowed(field), _yaml(default), field.description or ""


def _yaml(default: Any) -> str:
    words = {None: "`null`", True: "`true`", False: "`false`"}
    return words[default] if default is None or isinstance(default, bool) else default_of(default)


def allowed(field: FieldInfo) -> str:
    """What a setting may be: its type, and its limits if it has some."""
    nested = [
        one for part in get_args(field.annotation) for one in getattr(part, "__metadata__", ())
    ]
    inner = [item for one in nested for item in (one, *getattr(one, "metadata", ()))]
    items = [*field.metadata, *inner]
    limits = [
        f"{word} {getattr(item, name)}"
        for item in items
        for name, word in LIMITS
        if hasattr(item, name)
    ]
    return ", ".join([type_of(field.annotation), *limits])
