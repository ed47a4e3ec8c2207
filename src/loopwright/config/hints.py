"""Type hints: what they ask for, as values of YAML, as JSON schema, and in words for messages."""

from __future__ import annotations

import enum
import inspect
import os
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import torch

from .kinds import Entry, Place, Schema, is_class, public_name
from .yaml import plain_text

CONTAINERS: dict[Any, Any] = {
    **dict.fromkeys(
        (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Iterator), list
    ),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    abc.Reversible: list,
    frozenset: frozenset,
    tuple: tuple,
}
WRAPPERS = ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}


def strip(hint: Any) -> tuple[Any, Place | None]:
    """The hint without what only wraps it, and the place that it was annotated with."""
    place = None
    while True:
        origin = get_origin(hint)
        if isinstance(hint, Place):
            return Any, hint
        if origin is Annotated:
            places = [item for item in hint.__metadata__ if isinstance(item, Place)]
            place = place or next(iter(places), None)
            hint = hint.__origin__
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or (Union[hint.__constraints__] if hint.__constraints__ else Any)  # noqa: UP007
        elif getattr(origin, "__name__", None) in WRAPPERS:
            hint = get_args(hint)[0]
        elif is_alias(hint):
            hint = hint.__value__
        else:
            return hint, place


def is_alias(hint: Any) -> bool:
    """Whether a hint is a `type` statement, which may name itself."""
    return type(hint).__name__ == "TypeAliasType"


def is_unknown(hint: Any) -> bool:
    """Whether a hint says nothing about the value."""
    says_nothing = hint is Any or class_of(hint) in (object, abc.Hashable)
    return says_nothing or isinstance(hint, str | ForwardRef | tuple)


def options_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union; of a number or tensor, as torch's optimizers have it, the
    number. Nothing where it is no union."""
    if get_origin(hint) not in (Union, UnionType):
        return ()
    options = get_args(hint)
    if int in options or float in options:
        return tuple(option for option in options if option is not torch.Tensor)
    return options


def class_of(hint: Any) -> Any:
    """The class that a hint names, without its parameters; None where it names none."""
    if hint is None:
        return type(None)
    origin = get_origin(hint) or hint
    return origin if is_class(origin) else None


def choices_of(hint: Any) -> list[tuple[Any, Any]] | None:
    """The values of a `Literal` or an enum with their names; None of another hint."""
    if get_origin(hint) is Literal:
        options = get_args(hint)
    elif (found := class_of(hint)) is not None and issubclass(found, enum.Enum):
        options = tuple(found)
    else:
        return None
    return [(getattr(option, "name", option), option) for option in options]


def schema_of(found: Any) -> Schema:
    """The keys of a TypedDict."""
    hints = hints_of(found) or found.__annotations__
    required = found.__required_keys__
    return Schema({name: Entry(hint, name in required) for name, hint in hints.items()})


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function, without hints whose names cannot be resolved at run time."""
    function = inspect.unwrap(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # a name that only a type checker imports: the others are found one by one
        names = getattr(function, "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= get_type_hints(holder, globalns=names, localns={}, include_extras=True)
        except Exception:
            continue
    return found


# Scalars: each reads a value of YAML, or raises


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return read


def _whole(value: Any) -> int:
    # a float that is large is not exact
    if type(value) is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return _exactly(int)(value)  # type: ignore[no-any-return]


def _number(value: Any) -> float:
    return float(value) if type(value) is int else _exactly(float)(value)


def _device(value: Any) -> torch.device:
    if type(value) not in (str, int):
        raise TypeError
    return torch.device(value)


def _size(value: Any) -> torch.Size:
    return torch.Size([_whole(item) for item in _exactly(list)(value)])


def _dtype(value: Any) -> torch.dtype:
    found = getattr(torch, value.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError
    return found


SCALARS: dict[Any, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    str: (_exactly(str), {"type": "string"}),
    bool: (_exactly(bool), {"type": "boolean"}),
    int: (_whole, {"type": "integer"}),
    float: (_number, {"type": "number"}),
    complex: (_number, {"type": "number"}),
    type(None): (_exactly(type(None)), {"type": "null"}),
    torch.Size: (_size, {"type": "array", "items": {"type": "integer"}}),
    torch.dtype: (_dtype, {"type": "string", "words": "a dtype such as float32"}),
    torch.device: (_device, {"type": "string", "words": "a device such as cpu or cuda:0"}),
    torch.Tensor: (torch.tensor, {"type": ["array", "number"], "words": "a list of numbers"}),
    **dict.fromkeys((Path, PurePath, os.PathLike), (Path, {"type": "string", "words": "a path"})),
}
"""How a value of YAML becomes one of these types, and its JSON schema."""


# JSON schema and words


def json_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a hint; with `place`, `schema` and `object` where the caller has to fill
    one in, and `words` for messages where the schema does not say it."""
    if isinstance(hint, Schema):
        return {"schema": hint, "words": f"a mapping with {', '.join(hint.entries)}"}
    if is_alias(hint):
        return {}
    hint, place = strip(hint)
    if place is not None:
        return {"place": place, "words": f"a mapping with `kind:` (a {place.wanted})"}
    if options := options_of(hint):
        return {"anyOf": [json_of(option) for option in options]}
    if is_unknown(hint):
        return {}
    if (choices := choices_of(hint)) is not None:
        return {"enum": [name for name, _ in choices]}
    found = class_of(hint)
    if found in SCALARS:
        return SCALARS[found][1]
    if found in CONTAINERS:
        return _container_json(CONTAINERS[found], get_args(hint))
    if found is None:
        return {"words": str(hint)}
    if is_typeddict(found):
        return json_of(schema_of(found))
    if found is type:
        return {"type": "string", "words": "the import path of a class"}
    words = "a mapping that describes a "
    if found is abc.Callable:
        words += "module to be called, such as {kind: GELU} (a function cannot be named)"
        return {"type": "object", "words": words}
    return {"object": found, "words": words + public_name(found)}


def _container_json(kind: type, inner: tuple[Any, ...]) -> dict[str, Any]:
    if kind is dict:
        return {"type": "object", "additionalProperties": json_of(inner[1] if inner else Any)}
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        parts = [json_of(part) for part in inner]
        size = len(parts)
        return {"type": "array", "prefixItems": parts, "minItems": size, "maxItems": size}
    return {"type": "array", "items": json_of(inner[0] if inner else Any)}


def describe(hint: Any) -> str:
    """What a hint asks for, in words for a message."""
    return _words(json_of(hint))


def _words(json: Mapping[str, Any]) -> str:
    if "words" in json:
        return str(json["words"])
    if "anyOf" in json:
        return _either(_words(option) for option in json["anyOf"])
    if "enum" in json:
        return _either(
            value if isinstance(value, str) else plain_text(value) for value in json["enum"]
        )
    if "prefixItems" in json:
        parts = [_words(part) for part in json["prefixItems"]]
        return f"a list of {len(parts)} ({', '.join(parts)})"
    if json.get("type") == "array":
        return f"a list of {_words(json['items'])}" if json["items"] else "a list"
    if json.get("type") == "object":
        inner = json["additionalProperties"]
        return f"a mapping to {_words(inner)}" if inner else "a mapping"
    return NAMES.get(json.get("type", ""), "a value")


def _either(texts: Iterable[str]) -> str:
    names = list(dict.fromkeys(texts))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
