"""The arguments of a class, through `**kwargs` to its bases, and the fields of pydantic models."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails
from torch import nn

from .hints import class_of, hints_of, mistake, options_of, strip, wrong_value
from .kinds import is_class, real_mro
from .places import Called, Modelled, Place

EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; `is_required` only where it is sure to be."""

    name: str
    hint: Any
    is_required: bool
    default: Any = EMPTY
    is_positional: bool = (
        False  # passed by position: positional-only, or `*args` under its own name
    )
    is_variadic: bool = False


@dataclass(frozen=True, slots=True)
class Arguments:
    """All arguments of a class or function.

    is_open: any other key is accepted, since `**kwargs` leads to nothing that says what it takes.
    takes_any: any keyword may be passed by the program.
    model: the argument that is a pydantic model, whose fields take the place of the arguments in
    the file.
    """

    items: dict[str, Argument] = field(default_factory=dict)
    is_open: bool = False
    takes_any: bool = False
    model: Argument | None = None

    def takes(self, name: str) -> bool:
        return self.takes_any or name in self.items


def arguments_of(target: Callable[..., Any]) -> Arguments:
    """The arguments of a class, from its `__init__` and the `__init__`s that its `**kwargs` reach;
    or of a function."""
    functions = list(_constructors(target)) if is_class(target) else [target]
    items: dict[str, Argument] = {}
    is_open = bool(functions)
    is_forwarding = True
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
        is_forwarding = is_forwarding and all(
            parameter.kind in VARIADIC for parameter in parameters
        )
        if not has_kwargs:
            is_open = False
            break
    takes_any = bool(functions) and _has_kwargs(functions[0], is_class(target))
    items = {name: _with_hint(item, functions[1:]) for name, item in items.items()}
    return _with_model(
        Arguments(items, is_open and not _ends_in_module(target), takes_any), functions, target
    )


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
    """Whether what is left over would reach `nn.Module`, which takes nothing although its signature
    says otherwise."""
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


def _argument(
    parameter: inspect.Parameter, hints: dict[str, Any], has_kwargs: bool
) -> Argument | None:
    hint = hints.get(parameter.name, EMPTY)
    if parameter.kind is VARIADIC[1] or (parameter.kind is VARIADIC[0] and has_kwargs):
        return None
    if parameter.kind is VARIADIC[0]:
        inner = Any if hint is EMPTY else hint
        return Argument(parameter.name, list[inner], False, is_positional=True, is_variadic=True)  # type: ignore[valid-type]
    is_positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    return Argument(
        parameter.name, hint, parameter.default is EMPTY, parameter.default, is_positional
    )


def _with_hint(item: Argument, functions: list[Callable[..., Any]]) -> Argument:
    """An argument without a hint has that of the same argument in a base."""
    if item.hint is not EMPTY:
        return item
    found = (hints_of(function).get(item.name, EMPTY) for function in functions)
    return replace(item, hint=next((hint for hint in found if hint is not EMPTY), Any))


def _with_model(
    arguments: Arguments, functions: list[Callable[..., Any]], target: Any
) -> Arguments:
    """Set apart the argument that is a pydantic model; beside it only the class's own arguments
    count."""
    model = next(
        (item for item in arguments.items.values() if model_in(item.hint) is not None), None
    )
    if model is None:
        return arguments
    own = {
        p.name
        for p in _parameters(functions[0], skip_self=is_class(target)) or ()
        if p.kind not in VARIADIC
    }
    items = {
        name: item for name, item in arguments.items.items() if name in own or name == model.name
    }
    return Arguments(items, is_open=False, takes_any=arguments.takes_any, model=model)


def model_in(hint: Any) -> type[BaseModel] | None:
    """The pydantic model that a hint asks for, also as `Model | None`."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    models = [option for option in options if is_class(option) and BaseModel in real_mro(option)]
    return models[0] if len(models) == 1 else None


def is_model(found: Any) -> bool:
    return is_class(found) and BaseModel in real_mro(found)


def fields_of(model: type[BaseModel]) -> dict[str, Argument]:
    """The keys of a model: its fields, by the names under which it reads them."""
    found = {}
    for name, info in model.model_fields.items():
        default = EMPTY if info.is_required() else info.default
        for key in _keys(model, name, info):
            found[key] = Argument(key, hint_of(info), info.is_required(), default)
    return found


def _keys(model: type[BaseModel], name: str, info: FieldInfo) -> list[str]:
    alias = info.validation_alias if isinstance(info.validation_alias, str) else info.alias
    if alias is None:
        return [name]
    by_name = model.model_config.get("populate_by_name") or model.model_config.get(
        "validate_by_name"
    )
    return [alias, name] if by_name else [alias]


def hint_of(info: FieldInfo) -> Any:
    hint = info.annotation
    return Annotated[hint, *info.metadata] if info.metadata else hint


def is_open(model: type[BaseModel]) -> bool:
    """Whether a model takes keys that it has no fields for; a model that would ignore them does
    not."""
    return model.model_config.get("extra") == "allow"


def parts_of(hint: Any) -> Iterator[Any]:
    """The places and classes in a hint, whatever unions and containers they are in."""
    plain, place = strip(hint)
    inside = () if get_origin(plain) is Literal else get_args(plain)
    if place is not None or options_of(plain) is None:
        yield place or (class_of(plain) if inside else plain)
    for part in inside:
        if part is not Ellipsis and not isinstance(part, list):
            yield from parts_of(part)


def needs_building(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Whether objects that pydantic cannot make out of plain data are part of a field."""
    for part in parts_of(hint):
        if is_model(part) and part not in seen:
            if any(
                needs_building(hint_of(info), (*seen, part)) for info in part.model_fields.values()
            ):
                return True
        elif isinstance(part, Place) or not _is_for_pydantic(part):
            return True
    return False


def holds_mappings(hint: Any) -> bool:
    """Whether models or dataclasses are part of a field: pydantic passes over keys in them that it
    does not know."""
    return any(is_model(part) or is_dataclass(part) for part in parts_of(hint))


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


def model_mistakes(
    model: type[BaseModel], values: Mapping[str, Any], given: Mapping[str, Any]
) -> list[InitErrorDetails]:
    """What a model says about the values of its fields; `given` is the mapping in the file, where
    its mistakes lie."""
    unbuilt = {name for name, value in values.items() if has_recipe(value)}
    try:
        checker_of(model).model_validate(values)
    except ValidationError as error:
        found = [
            item for item in error.errors() if not item["loc"] or item["loc"][0] not in unbuilt
        ]
        return [_translated(item, given) for item in found]
    except Exception as error:
        # A validator that looks into an object cannot run before there is one; it will when the
        # model is built.
        words = mistake(f"{type(error).__name__}: {error}")
        return [] if unbuilt else [InitErrorDetails(type=words, loc=(), input=None)]
    return []


def has_recipe(value: Any) -> bool:
    """Whether there is an object in a value that is not built yet."""
    inside = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple | set)
        else ()
    )
    return isinstance(value, Called | Modelled) or any(map(has_recipe, inside))


def _translated(item: Any, given: Any) -> InitErrorDetails:
    """An error of pydantic in our words, at its place in the file: without names for the
    alternatives of a union."""
    location: list[int | str] = []
    for part in item["loc"]:
        is_there = (
            part in given
            if isinstance(given, dict)
            else isinstance(given, list) and isinstance(part, int)
        )
        if is_there:
            given = given[part]
            location.append(part)
    if item["type"] == "missing":
        words = mistake("is missing, and has no default.")
        return InitErrorDetails(type=words, loc=(*location, item["loc"][-1]), input=None)
    text = (
        str(item["msg"])
        .removeprefix("Value error, ")
        .removeprefix("Assertion failed, ")
        .rstrip(".")
    )
    words = wrong_value(f"{text[:1].lower()}{text[1:]}.") if item["loc"] else mistake(f"{text}.")
    return InitErrorDetails(type=words, loc=tuple(location), input=None)
