"""The arguments of a class, through `**kwargs` to its bases, and the fields of pydantic models."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    create_model,
)
from pydantic.fields import FieldInfo
from torch import nn

from .hints import class_of, hints_of, options_of, strip
from .kinds import Place, is_class, real_mro

EMPTY = inspect.Parameter.empty
POSITIONAL = inspect.Parameter.VAR_POSITIONAL
KEYWORD = inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; `is_required` only where it is sure to be.

    is_positional: passed by position: positional-only, or `*args` (`is_variadic`) under its own
    name.
    """

    hint: Any
    is_required: bool = False
    default: Any = EMPTY
    is_positional: bool = False
    is_variadic: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """All arguments of a class or function.

    is_open: any other key is accepted, since `**kwargs` leads to nothing that says what it takes.
    takes_any: any keyword may be passed by the program.
    model: the name of the argument that is a pydantic model, whose fields take the place of the
    arguments in the file.
    """

    items: dict[str, Argument] = field(default_factory=dict)
    is_open: bool = False
    takes_any: bool = False
    model: str | None = None

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.items


def arguments_of(target: Any) -> Arguments:
    """The arguments of a class, from its `__init__` and the `__init__`s that its `**kwargs` reach;
    or of a function."""
    functions = list(_constructors(target)) if is_class(target) else [target]
    items: dict[str, Argument] = {}
    own: list[str] = []  # arguments of the first function
    is_open = bool(functions)
    is_sure = True  # whether a required argument cannot have been supplied by a subclass
    takes_any = False
    for function in functions:
        parameters = _parameters(function, skip_self=is_class(target))
        has_kwargs = parameters is None or any(each.kind is KEYWORD for each in parameters)
        takes_any |= function is functions[0] and has_kwargs
        if parameters is None:
            break
        hints = hints_of(function)
        for parameter in parameters:
            name = parameter.name
            hint = hints.get(name, EMPTY)
            if name in items:
                continue
            if parameter.kind is POSITIONAL and not has_kwargs:
                inner = Any if hint is EMPTY else hint
                items[name] = Argument(list[inner], is_positional=True, is_variadic=True)  # type: ignore[valid-type]
            elif parameter.kind not in (POSITIONAL, KEYWORD):
                items[name] = Argument(
                    hint,
                    is_sure and parameter.default is EMPTY,
                    parameter.default,
                    parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
                )
        if function is functions[0]:
            own = list(items)
        is_sure &= all(each.kind in (POSITIONAL, KEYWORD) for each in parameters)
        if not has_kwargs:
            is_open = False
            break
    for name, item in items.items():
        if item.hint is EMPTY:  # the same argument of a base may have one
            bases = (hints_of(function).get(name, EMPTY) for function in functions)
            found = next((hint for hint in bases if hint is not EMPTY), Any)
            items[name] = replace(item, hint=found)
    if is_class(target) and nn.Module in real_mro(target):
        is_open = False  # `nn.Module` takes nothing although its signature says otherwise
    models = [name for name, item in items.items() if model_in(item.hint) is not None]
    if not models:
        return Arguments(items, is_open, takes_any)
    # beside a model only the class's own arguments count
    own.append(models[0])
    items = {name: item for name, item in items.items() if name in own}
    return Arguments(items, False, takes_any, models[0])


def _constructors(cls: Any) -> Iterator[Callable[..., Any]]:
    """The `__init__` functions of a class and its bases, up to one that takes nothing more."""
    for owner in real_mro(cls):
        if owner is object or owner is nn.Module:
            return
        init = vars(owner).get("__init__")
        if init is None and owner is cls:
            init = vars(owner).get("__new__")
        if isinstance(init, staticmethod):
            init = init.__func__
        if init is not None:
            yield init


def _parameters(function: Callable[..., Any], *, skip_self: bool) -> list[inspect.Parameter] | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):  # built in, without a signature
        return None
    return parameters[1:] if skip_self else parameters


# Pydantic models


def is_model(found: Any) -> bool:
    return is_class(found) and BaseModel in real_mro(found)


def model_in(hint: Any) -> type[BaseModel] | None:
    """The pydantic model that a hint asks for, also as `Model | None`."""
    models = [option for option in options_of(hint) or (hint,) if is_model(option)]
    return models[0] if len(models) == 1 else None


def fields_of(model: type[BaseModel]) -> dict[str, Argument]:
    """The keys of a model: its fields, by the names under which it reads them."""
    config = model.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    found = {}
    for name, info in model.model_fields.items():
        if isinstance(info.validation_alias, str) and not by_name:
            name = info.validation_alias
        is_required = info.is_required()
        found[name] = Argument(hint_of(info), is_required, EMPTY if is_required else info.default)
    return found


def hint_of(info: FieldInfo) -> Any:
    hint = info.annotation
    return Annotated[hint, *info.metadata] if info.metadata else hint


def parts_of(hint: Any) -> Iterator[Any]:
    """The places and classes in a hint, whatever unions and containers they are in."""
    plain, place = strip(hint)
    inside = () if get_origin(plain) is Literal else get_args(plain)
    if place is not None or not options_of(plain):
        yield place or (class_of(plain) if inside else plain)
    for part in inside:
        if part is not Ellipsis and not isinstance(part, list):
            yield from parts_of(part)


def needs_building(hint: Any) -> bool:
    """Whether a field has parts that are built here: objects that pydantic cannot make out of plain
    data, and models and dataclasses, in which pydantic passes over keys that it does not know."""
    for part in parts_of(hint):
        is_ours = isinstance(part, Place) or is_model(part) or is_dataclass(part)
        if is_ours or not _is_for_pydantic(part):
            return True
    return False


def _is_for_pydantic(hint: Any) -> bool:
    try:  # inside a list, since a dataclass as such takes no other settings than its own
        TypeAdapter(list[hint], config=ConfigDict(arbitrary_types_allowed=False))
    except PydanticSchemaGenerationError:
        return False
    except PydanticUserError:  # another mistake in the type, which pydantic reports itself
        return True
    return True


@cache
def checker_of(model: type[BaseModel]) -> type[BaseModel]:
    """The model with anything accepted where objects go, so that all else can be checked before
    they are built."""
    replaced: dict[str, Any] = {
        name: (Any, ... if info.is_required() else None)
        for name, info in model.model_fields.items()
        if needs_building(hint_of(info))
    }
    with warnings.catch_warnings():  # what there was to say was said when the model itself was made
        warnings.simplefilter("ignore")
        return create_model(model.__name__, __base__=model, **replaced) if replaced else model
