"""What a class takes: the arguments of its constructor with their hints, through `**kwargs` to the bases."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from torch import nn

from .kinds import is_class, real_mro

EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; `is_required` only where it is sure to be."""

    name: str
    hint: Any
    is_required: bool
    default: Any = EMPTY
    is_positional: bool = False  # passed by position: positional-only, or `*args` under its own name
    is_variadic: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """All arguments of a class or function.

    is_open: any other key is accepted, since `**kwargs` leads to nothing that says what it takes.
    takes_any: any keyword may be passed by the program.
    model: the argument that is a pydantic model, whose fields take the place of the arguments in the file.
    """

    items: dict[str, Argument] = field(default_factory=dict)
    is_open: bool = False
    takes_any: bool = False
    model: Argument | None = None

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.items


def arguments_of(target: Callable[..., Any]) -> Arguments:
    """What a class takes, from its `__init__` and those it forwards `**kwargs` to; or what a function takes."""
    functions = list(_constructors(target)) if is_class(target) else [target]
    items: dict[str, Argument] = {}
    is_open, is_forwarding = bool(functions), True
    for function in functions:
        parameters = _parameters(function, skip_self=is_class(target))
        if parameters is None:
            break
        hints = hints_of(function)
        has_kwargs = any(parameter.kind is VARIADIC[1] for parameter in parameters)
        for parameter in parameters:
            found = _argument(parameter, hints, has_kwargs)
            if found is not None and found.name not in items:
                items[found.name] = found if is_forwarding else replace(found, is_required=False)
        is_forwarding = is_forwarding and all(parameter.kind in VARIADIC for parameter in parameters)
        if not has_kwargs:
            is_open = False
            break
    takes_any = bool(functions) and _has_kwargs(functions[0], is_class(target))
    items = {name: _with_hint(item, functions[1:]) for name, item in items.items()}
    return _with_model(Arguments(items, is_open and not _ends_in_module(target), takes_any), functions, target)


def _constructors(cls: Any) -> Iterator[Callable[..., Any]]:
    """The `__init__` functions of a class and its bases, up to one that takes nothing more."""
    for owner in real_mro(cls):
        if owner is object or owner is nn.Module:
            return
        init = vars(owner).get("__init__") or (vars(owner).get("__new__") if owner is cls else None)
        if isinstance(init, staticmethod):
            init = init.__func__
        if init is not None:
            yield init


def _ends_in_module(target: Any) -> bool:
    """Whether what is left over would reach `nn.Module`, which takes nothing although its signature says otherwise."""
    return is_class(target) and nn.Module in real_mro(target)


def _parameters(function: Callable[..., Any], *, skip_self: bool) -> list[inspect.Parameter] | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # built in, without a signature
        return None
    return parameters[1:] if skip_self else parameters


def _has_kwargs(function: Callable[..., Any], skip_self: bool) -> bool:
    parameters = _parameters(function, skip_self=skip_self)
    return parameters is None or any(parameter.kind is VARIADIC[1] for parameter in parameters)


def _argument(parameter: inspect.Parameter, hints: dict[str, Any], has_kwargs: bool) -> Argument | None:
    hint = hints.get(parameter.name, EMPTY)
    if parameter.kind is VARIADIC[1] or (parameter.kind is VARIADIC[0] and has_kwargs):
        return None
    if parameter.kind is VARIADIC[0]:
        inner = Any if hint is EMPTY else hint
        return Argument(parameter.name, list[inner], False, is_positional=True, is_variadic=True)  # type: ignore[valid-type]
    is_positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    return Argument(parameter.name, hint, parameter.default is EMPTY, parameter.default, is_positional)


def _with_hint(item: Argument, functions: list[Callable[..., Any]]) -> Argument:
    """An argument without a hint has that of the same argument in a base."""
    if item.hint is not EMPTY:
        return item
    found = (hints_of(function).get(item.name, EMPTY) for function in functions)
    return replace(item, hint=next((hint for hint in found if hint is not EMPTY), Any))


def _with_model(arguments: Arguments, functions: list[Callable[..., Any]], target: Any) -> Arguments:
    """Set apart the argument that is a pydantic model; beside it only the class's own arguments count."""
    model = next((item for item in arguments.items.values() if model_in(item.hint) is not None), None)
    if model is None:
        return arguments
    own = {p.name for p in _parameters(functions[0], skip_self=is_class(target)) or () if p.kind not in VARIADIC}
    items = {name: item for name, item in arguments.items.items() if name in own or name == model.name}
    return Arguments(items, is_open=False, takes_any=arguments.takes_any, model=model)


def model_in(hint: Any) -> type[BaseModel] | None:
    """The pydantic model that a hint asks for, also as `Model | None`."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    models = [option for option in options if is_class(option) and BaseModel in real_mro(option)]
    return models[0] if len(models) == 1 else None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The hints of a function; those that cannot be found out at run time are left out."""
    function = inspect.unwrap(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # a name that only a type checker imports: the others are found one by one
        return _hints_one_by_one(getattr(function, "__annotations__", {}), getattr(function, "__globals__", {}))


def _hints_one_by_one(annotations: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, annotation in annotations.items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= get_type_hints(holder, globalns=names, localns={}, include_extras=True)
        except Exception:
            continue
    return found
