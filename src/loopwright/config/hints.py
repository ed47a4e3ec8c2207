"""Type hints: what they ask for, as values of YAML and in words for messages."""

from __future__ import annotations

import enum
import inspect
import os
from collections import abc
from collections.abc import Callable, Iterable
from pathlib import Path
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
)

import torch

from .kinds import Place, Schema, is_class, public_name
from .yaml import plain_text

CONTAINERS: dict[Any, Any] = {
    **dict.fromkeys((list, abc.Sequence, abc.Iterable, abc.Collection), list),
    **dict.fromkeys((set, abc.Set), set),
    **dict.fromkeys((dict, abc.Mapping, abc.MutableMapping), dict),
    frozenset: frozenset,
    tuple: tuple,
}


def strip(hint: Any) -> tuple[Any, Place | None]:
    """The hint without what only wraps it, and the place that it was annotated with."""
    place = None
    while True:
        if isinstance(hint, Place):
            return Any, hint
        if get_origin(hint) is Annotated:
            places = [item for item in hint.__metadata__ if isinstance(item, Place)]
            if places and place is None:
                place = places[0]
            hint = hint.__origin__
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or Any
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
    found = class_of(hint)
    options: Iterable[Any]
    if get_origin(hint) is Literal:
        options = get_args(hint)
    elif found is not None and issubclass(found, enum.Enum):
        options = found
    else:
        return None
    return [(getattr(option, "name", option), option) for option in options]


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


def _dtype(value: Any) -> torch.dtype:
    found = getattr(torch, value.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError
    return found


SCALARS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    str: (_exactly(str), "text"),
    bool: (_exactly(bool), "true or false"),
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    type(None): (_exactly(type(None)), "null"),
    torch.dtype: (_dtype, "a dtype such as float32"),
    torch.device: (_device, "a device such as cpu or cuda:0"),
    torch.Tensor: (torch.tensor, "a list of numbers"),
    Path: (Path, "a path"),
    os.PathLike: (Path, "a path"),
}
"""How a value of YAML becomes one of these types, and what the value is called."""


def describe(hint: Any) -> str:
    """What a hint asks for, in words for a message."""
    if isinstance(hint, Schema):
        return f"a mapping with {', '.join(hint.entries)}"
    if is_alias(hint):
        return str(hint)
    hint, place = strip(hint)
    if place is not None:
        return f"a mapping with `kind:` (a {place.wanted})"
    if options := options_of(hint):
        return _either(map(describe, options))
    if is_unknown(hint):
        return "a value"
    choices = choices_of(hint)
    if choices is not None:
        names = [name for name, _ in choices]
        return _either(name if isinstance(name, str) else plain_text(name) for name in names)
    found = class_of(hint)
    if found in SCALARS:
        return SCALARS[found][1]
    if found in CONTAINERS:
        return _describe_container(CONTAINERS[found], get_args(hint))
    if found is None:
        return str(hint)
    if found is type:
        return "the import path of a class"
    if found is abc.Callable:
        return "a module to be called, such as {kind: GELU} (a function cannot be named)"
    return f"a mapping that describes a {public_name(found)}"


def _describe_container(kind: type, inner: tuple[Any, ...]) -> str:
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)} ({', '.join(map(describe, inner))})"
    if not inner:
        return "a mapping" if kind is dict else "a list"
    item = inner[1] if kind is dict else inner[0]
    if is_unknown(item):
        return _describe_container(kind, ())
    return f"a mapping to {describe(item)}" if kind is dict else f"a list of {describe(item)}"


def _either(texts: Iterable[str]) -> str:
    names = list(dict.fromkeys(texts))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
