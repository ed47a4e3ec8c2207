"""Type hints: what they say in words, and plain values as what they ask for."""

from __future__ import annotations

import enum
import math
import os
import types
from collections import abc
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Annotated, Any, ForwardRef, Literal, NewType, TypeVar, Union, get_args, get_origin

import torch

from .kinds import is_class
from .places import Place, public_name
from .tree import near_names

LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Iterator, abc.Reversible)
SETS = (set, frozenset, abc.Set, abc.MutableSet)
MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
CALLABLE: Any = abc.Callable
PATHS = (Path, PurePath, os.PathLike)
NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


class MismatchError(Exception):
    """A value that is not what a hint asks for; the message is a hint on what to write, or empty."""


def strip(hint: Any) -> tuple[Any, Place | None]:
    """The hint without what only wraps it, and the place that it was annotated with."""
    place = None
    while True:
        origin = get_origin(hint)
        if isinstance(hint, Place):
            return Any, hint
        if origin is Annotated:
            place = place or next((item for item in hint.__metadata__ if isinstance(item, Place)), None)
            hint = hint.__origin__
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or (Union[hint.__constraints__] if hint.__constraints__ else Any)  # noqa: UP007
        elif getattr(origin, "__name__", None) in ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly"):
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint, place


def is_unknown(hint: Any) -> bool:
    """Whether a hint says nothing about the value."""
    return hint in (Any, object, abc.Hashable) or isinstance(hint, str | ForwardRef | tuple)


def options_of(hint: Any) -> tuple[Any, ...] | None:
    """The alternatives of a union, or None if it is not one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else None


def class_of(hint: Any) -> type | None:
    """The class that a hint names, without its parameters."""
    origin = get_origin(hint) or hint
    return origin if is_class(origin) else None


def describe(hint: Any) -> str:
    """What a hint asks for, in words for a message."""
    hint, place = strip(hint)
    if place is not None:
        return f"a mapping with `kind:` (a {place.wanted})"
    options = options_of(hint)
    if options is not None:
        return _either(describe(option) for option in options)
    if get_origin(hint) is Literal:
        return _either(_literal(value) for value in get_args(hint))
    found = class_of(hint)
    if found in NAMES:
        return NAMES[found]
    if is_unknown(hint) or found is None:
        return "a value" if is_unknown(hint) else str(hint)
    return _describe_class(found, hint)


def _describe_class(found: type, hint: Any) -> str:
    inner = [arg for arg in get_args(hint) if arg is not Ellipsis]
    if found is tuple and inner and Ellipsis not in get_args(hint):
        return f"a list of {len(inner)} ({', '.join(describe(arg) for arg in inner)})"
    if found in (*LISTS, *SETS, tuple):
        return "a list" + (f" of {describe(inner[0])}" if inner and not is_unknown(inner[0]) else "")
    if found in MAPPINGS:
        return "a mapping" + (f" to {describe(inner[1])}" if len(inner) == 2 and not is_unknown(inner[1]) else "")
    if found in PATHS:
        return "a path"
    if found is CALLABLE:
        return "a mapping that describes a module to be called, such as {kind: GELU} (a function cannot be named)"
    if issubclass(found, enum.Enum):
        return _either(item.name for item in found)
    if found in (torch.dtype, torch.device, torch.Tensor, torch.Size):
        words = {torch.dtype: "a dtype such as float32", torch.device: "a device such as cpu or cuda:0"}
        return words.get(found, "a list of numbers")
    return f"a mapping that describes a {public_name(found)}"


def _either(texts: Iterable[str]) -> str:
    names = list(dict.fromkeys(texts))
    if "a number" in names and "a list of numbers" in names:  # a number, or the tensor that is made of one
        names.remove("a list of numbers")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _literal(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


def convert(value: Any, hint: Any) -> Any:
    """A scalar as what a hint without alternatives asks for; raises MismatchError."""
    if get_origin(hint) is Literal:
        return _one_of(value, get_args(hint))
    found = class_of(hint)
    if found is type(None) or hint is None:
        return _exact(value, type(None))
    if found in (str, bool):
        return _exact(value, found)
    if found is int:
        return _whole(value)
    if found is float or found is complex:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _fail()
    if found in PATHS:
        return Path(_exact(value, str))
    if found is torch.dtype:
        return _dtype(_exact(value, str))
    if found is torch.device:
        return _device(value)
    if found is not None and issubclass(found, enum.Enum):
        return _member(value, found)
    return _fail()


def _fail(message: str = "") -> Any:
    raise MismatchError(message)


def _exact(value: Any, wanted: type) -> Any:
    return value if type(value) is wanted else _fail()


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # 1e3 is a float in YAML, and a thousand to whoever wrote it
    raise MismatchError


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    for option in allowed:
        if type(option) is type(value) and option == value:
            return option
        if isinstance(option, enum.Enum) and value in (option.name, option.value):
            return option
    near = near_names(value, [option for option in allowed if isinstance(option, str)]) if type(value) is str else []
    raise MismatchError(f"did you mean {' or '.join(near)}?" if near else "")


def _member(value: Any, members: type[enum.Enum]) -> enum.Enum:
    for member in members:
        if value == member.name or (type(value) is type(member.value) and value == member.value):
            return member
    near = near_names(value, [member.name for member in members]) if type(value) is str else []
    raise MismatchError(f"did you mean {' or '.join(near)}?" if near else "")


def _dtype(name: str) -> torch.dtype:
    found = vars(torch).get(name.removeprefix("torch."))
    if isinstance(found, torch.dtype):
        return found
    known = [key for key, value in vars(torch).items() if isinstance(value, torch.dtype)]
    near = near_names(name.removeprefix("torch."), known)
    raise MismatchError(f"did you mean {' or '.join(near)}?" if near else "")


def _device(value: Any) -> torch.device:
    if type(value) not in (str, int):
        raise MismatchError
    try:
        return torch.device(value)
    except (RuntimeError, ValueError):
        raise MismatchError from None
