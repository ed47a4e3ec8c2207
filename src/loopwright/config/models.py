"""Pydantic models as part of a config: their fields are keys, and they are asked before anything is built."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
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

from .arguments import EMPTY, Argument
from .hints import class_of, strip
from .kinds import is_class, real_mro
from .places import Gathered, Mapped, Ready, Recipe
from .tree import Node, child_of, join_key


class Unbuilt:
    """Stands for an object that is not built yet while a model checks its other fields."""


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


def needs_building(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Whether a field's value is made here, since pydantic cannot make it out of plain data."""
    plain, place = strip(hint)
    found = class_of(plain)
    if place is not None:
        return True
    if is_model(found):
        inner = () if found in seen else found.model_fields.values()  # type: ignore[union-attr]
        return any(needs_building(hint_of(info), (*seen, found)) for info in inner)
    inside = () if get_origin(plain) is Literal else get_args(plain)
    if any(needs_building(part, seen) for part in inside if part is not Ellipsis and not isinstance(part, list)):
        return True
    return not _is_for_pydantic(plain)


def holds_mappings(hint: Any) -> bool:
    """Whether models or dataclasses are part of a field: pydantic passes over keys in them that it does not know."""
    plain, _ = strip(hint)
    if is_model(class_of(plain)) or is_dataclass(class_of(plain)):
        return True
    inside = () if get_origin(plain) is Literal else get_args(plain)
    return any(holds_mappings(part) for part in inside if part is not Ellipsis and not isinstance(part, list))


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


def model_problems(
    model: type[BaseModel], fields: Mapping[str, Recipe], node: Node, key: str
) -> list[tuple[Node, str, str]]:
    """What a model says about the values it is to get: the node, key and message of each mistake."""
    unbuilt = {name for name, item in fields.items() if not isinstance(item, Ready)}
    try:
        checker_of(model).model_validate({name: sketch(item) for name, item in fields.items()})
    except ValidationError as error:
        found = [item for item in error.errors() if not item["loc"] or item["loc"][0] not in unbuilt]
        return [_located(item, node, key) for item in found]
    except Exception as error:
        # A validator that looks into an object cannot run before there is one; it will when the model is built.
        return [] if unbuilt else [(node, key, f"{type(error).__name__}: {error}")]
    return []


def sketch(recipe: Recipe) -> Any:
    """The value that a recipe makes, as far as it can be had without building anything."""
    if isinstance(recipe, Ready):
        return recipe.value
    if isinstance(recipe, Gathered):
        return [sketch(item) for item in recipe.items]
    return {key: sketch(item) for key, item in recipe.items.items()} if isinstance(recipe, Mapped) else Unbuilt()


def _located(item: Any, node: Node, key: str) -> tuple[Node, str, str]:
    """The place of an error: pydantic's path, without the names it gives to the alternatives of a union."""
    for part in item["loc"]:
        child = child_of(node, str(part))
        if child is not None:
            node, key = child, join_key(key, part)
    if item["type"] == "missing":
        return node, join_key(key, item["loc"][-1]), "is missing, and has no default."
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    if not item["loc"]:
        return node, key, f"{message}."
    return node, key, f"is {node.shown()}; {message[:1].lower()}{message[1:]}."
