"""Pydantic models as part of a config: their fields are keys, and they are asked before anything is built."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

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

from .arguments import EMPTY, Argument
from .hints import class_of, mistake, strip, wrong_value
from .kinds import is_class, real_mro
from .places import Called, Modelled, Place


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
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return [alias, name] if by_name else [alias]


def hint_of(info: FieldInfo) -> Any:
    hint = info.annotation
    return Annotated[hint, *info.metadata] if info.metadata else hint


def is_open(model: type[BaseModel]) -> bool:
    """Whether a model takes keys that it has no fields for; a model that would ignore them does not."""
    return model.model_config.get("extra") == "allow"


def parts_of(hint: Any) -> Iterator[Any]:
    """The places and classes in a hint, whatever unions and containers they are in."""
    plain, place = strip(hint)
    inside = () if get_origin(plain) is Literal else get_args(plain)
    yield place or (class_of(plain) or Any if inside else plain)
    for part in inside:
        if part is not Ellipsis and not isinstance(part, list):
            yield from parts_of(part)


def needs_building(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Whether objects that pydantic cannot make out of plain data are part of a field."""
    for part in parts_of(hint):
        if is_model(part) and part not in seen:
            if any(needs_building(hint_of(info), (*seen, part)) for info in part.model_fields.values()):
                return True
        elif isinstance(part, Place) or not _is_for_pydantic(part):
            return True
    return False


def holds_mappings(hint: Any) -> bool:
    """Whether models or dataclasses are part of a field: pydantic passes over keys in them that it does not know."""
    return any(is_model(part) or is_dataclass(part) for part in parts_of(hint))


def _is_for_pydantic(hint: Any) -> bool:
    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=False))
    except PydanticSchemaGenerationError:
        return False
    except PydanticUserError:  # a dataclass or typed dict has settings of its own, and so is for pydantic
        return True
    return True


@cache
def checker_of(model: type[BaseModel]) -> type[BaseModel]:
    """The model with anything accepted where objects go, so that all else can be checked before they are built."""
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
    """What a model says about the values of its fields; `given` is the mapping in the file, where its mistakes lie."""
    unbuilt = {name for name, value in values.items() if has_recipe(value)}
    try:
        checker_of(model).model_validate(values)
    except ValidationError as error:
        found = [item for item in error.errors() if not item["loc"] or item["loc"][0] not in unbuilt]
        return [_translated(item, given) for item in found]
    except Exception as error:
        # A validator that looks into an object cannot run before there is one; it will when the model is built.
        words = mistake(f"{type(error).__name__}: {error}")
        return [] if unbuilt else [InitErrorDetails(type=words, loc=(), input=None)]
    return []


def has_recipe(value: Any) -> bool:
    """Whether there is an object in a value that is not built yet."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return isinstance(value, Called | Modelled) or any(map(has_recipe, inside))


def _translated(item: Any, given: Any) -> InitErrorDetails:
    """An error of pydantic in our words, at its place in the file: without names for the alternatives of a union."""
    location: list[int | str] = []
    for part in item["loc"]:
        is_there = part in given if isinstance(given, dict) else isinstance(given, list) and isinstance(part, int)
        if is_there:
            given = given[part]
            location.append(part)
    if item["type"] == "missing":
        words = mistake("is missing, and has no default.")
        return InitErrorDetails(type=words, loc=(*location, item["loc"][-1]), input=None)
    text = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    words = wrong_value(f"{text[:1].lower()}{text[1:]}.") if item["loc"] else mistake(f"{text}.")
    return InitErrorDetails(type=words, loc=tuple(location), input=None)
