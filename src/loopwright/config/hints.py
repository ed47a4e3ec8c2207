"""Type hints: as pydantic takes them, with `kind` mappings where they name classes; and in words
for messages."""

from __future__ import annotations

import enum
import inspect
import os
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
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
from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from ..text import near_names
from .kinds import ANYTHING, RefusedError, fits, is_class, resolve_kind
from .places import KIND, Entry, Place, Schema, public_name
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
# the types of our errors
MISTAKE = "mistake"
WRONG_VALUE = "wrong_value"
PATHS = (Path, PurePath, os.PathLike)
NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}
EXACT = {kind: index for index, kind in enumerate((str, bool, int, float, type(None), dict, list))}
"""The types of YAML, in the order in which the alternatives of a union are tried: a value keeps its
type."""


def strip(hint: Any) -> tuple[Any, Place | None]:
    """The hint without what only wraps it, and the place that it was annotated with."""
    place = None
    while True:
        origin = get_origin(hint)
        if isinstance(hint, Place):
            return Any, hint
        if origin is Annotated:
            place = place or next(
                (item for item in hint.__metadata__ if isinstance(item, Place)), None
            )
            hint = hint.__origin__
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = hint.__bound__ or (Union[hint.__constraints__] if hint.__constraints__ else Any)  # noqa: UP007
        elif getattr(origin, "__name__", None) in (
            "Final",
            "ClassVar",
            "Required",
            "NotRequired",
            "ReadOnly",
        ):
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint, place


def is_unknown(hint: Any) -> bool:
    """Whether a hint says nothing about the value."""
    return (
        hint is Any
        or class_of(hint) in (object, abc.Hashable)
        or isinstance(hint, str | ForwardRef | tuple)
    )


def options_of(hint: Any) -> tuple[Any, ...] | None:
    """The alternatives of a union, or None if it is not one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else None


def class_of(hint: Any) -> type | None:
    """The class that a hint names, without its parameters."""
    origin = get_origin(hint) or hint
    return origin if is_class(origin) else None


def json_of(hint: Any, name: str = "") -> dict[str, Any]:
    """The JSON schema of a hint; with `place`, `schema` and `object` where the caller has to fill
    one in."""
    return TypeAdapter(typed(hint, name)).json_schema()


def describe(hint: Any) -> str:
    """What a hint asks for, in words for a message."""
    return words_of(json_of(hint))


def words_of(json: Mapping[str, Any]) -> str:
    """What a JSON schema asks for, in words for a message."""
    if "words" in json:
        return str(json["words"])
    if "anyOf" in json:
        return _either(words_of(option) for option in json["anyOf"])
    if "enum" in json:
        return _either(
            value if isinstance(value, str) else plain_text(value) for value in json["enum"]
        )
    if "prefixItems" in json:
        parts = [words_of(part) for part in json["prefixItems"]]
        return f"a list of {len(parts)} ({', '.join(parts)})"
    if json.get("type") in ("array", "object"):
        what = "a list of" if json["type"] == "array" else "a mapping to"
        inner = json.get("items", json.get("additionalProperties"))
        return (
            f"{what} {words_of(inner)}"
            if isinstance(inner, dict) and inner
            else what.rpartition(" ")[0]
        )
    return NAMES.get(json.get("type", ""), "a value")


def _either(texts: Iterable[str]) -> str:
    names = list(dict.fromkeys(texts))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def mistake(text: str) -> PydanticCustomError:
    """A mistake whose message is this text."""
    return PydanticCustomError(MISTAKE, "{text}", {"text": text})


def wrong_value(text: str) -> PydanticCustomError:
    """A mistake whose message is the value and this text: `is 3; expected text.`"""
    return PydanticCustomError(WRONG_VALUE, "{text}", {"text": text})


def mismatch(hint: Any, near: Iterable[str] = ()) -> PydanticCustomError:
    """A value that is not what a hint asks for, with the names that may have been meant."""
    names = list(near)
    return wrong_value(
        f"expected {describe(hint)}." + (f" Did you mean {' or '.join(names)}?" if names else "")
    )


@dataclass(
    frozen=True, slots=True, eq=False
)  # since `Annotated` would take `int | float` for `float | int`
class Expected:
    """Annotates what pydantic converts: its messages are replaced by ours, except about the parts
    of the value.

    options: the alternatives of a union; pydantic chooses the best, and only mistakes inside one of
    them are its own.
    """

    hint: Any
    options: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        choices: list[Any] = [
            (handler.generate_schema(option), str(i)) for i, option in enumerate(self.options)
        ]
        inner = core_schema.union_schema(choices) if choices else handler(source)
        return core_schema.no_info_wrap_validator_function(self.check, inner)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return (
            {"anyOf": [json_of(option) for option in get_args(self.hint)]}
            if self.options
            else handler(schema)
        )

    def check(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            inside = self.inside(error)
        raise ValidationError.from_exception_data("", inside) if inside else mismatch(self.hint)

    def inside(self, error: ValidationError) -> list[InitErrorDetails]:
        """The mistakes in parts of the value: all of them, or the mistakes of the alternative that
        fits best."""
        if any(
            item["type"] not in (MISTAKE, WRONG_VALUE) for item in error.errors(include_url=False)
        ):
            return []
        if not self.options:
            return moved(error)
        tries: dict[Any, list[InitErrorDetails]] = {}
        for item in moved(error):
            option, *location = item["loc"]
            tries.setdefault(option, []).append({**item, "loc": tuple(location)})
        return min(
            (found for found in tries.values() if any(item["loc"] for item in found)),
            key=len,
            default=[],
        )


def moved(error: ValidationError, *before: int | str) -> list[InitErrorDetails]:
    """The mistakes of an error, below a key, so that they can be raised again."""
    return [
        InitErrorDetails(
            type=PydanticCustomError(item["type"], "{text}", item["ctx"]),
            loc=(*before, *item["loc"]),
            input=item["input"],
        )
        for item in error.errors(include_url=False)
    ]


def typed(hint: Any, name: str = "") -> Any:
    """A hint as pydantic takes it: values of YAML become what it asks for, mappings with a `kind`
    recipes for objects.

    name: what an object is called in messages, where its class does not say.
    """
    # may name itself, so it is looked into when there is a value
    if type(hint).__name__ == "TypeAliasType":
        return leaf(lambda value, info: info.context.value(value, hint.__value__, name))
    if isinstance(hint, Schema):
        words = f"a mapping with {', '.join(hint.entries)}"
        return leaf(lambda value, info: info.context.schema(value, hint), schema=hint, words=words)
    hint, place = strip(hint)
    if place is not None:
        words = f"a mapping with `kind:` (a {place.wanted})"
        return leaf(lambda value, info: info.context.placed(value, place), place=place, words=words)
    options = options_of(hint)
    if options is not None:
        if torch.Tensor in options and (int in options or float in options):
            # as torch's optimizers have it: in a file it is a number
            return typed(Union[tuple(o for o in options if o is not torch.Tensor)], name)  # noqa: UP007
        ordered = sorted(options, key=lambda option: EXACT.get(class_of(option), len(EXACT)))
        return Annotated[Any, Expected(hint, tuple(typed(option, name) for option in ordered))]
    if is_unknown(hint):
        return leaf(partial(_unknown, name=name))
    if get_origin(hint) is Literal:
        return _one_of(hint, get_args(hint))
    return _typed_class(hint, type(None) if hint is None else class_of(hint), name)


def leaf(read: Callable[..., Any], **json: Any) -> Any:
    """A hint whose values are read by a function rather than by pydantic, with its JSON schema."""
    return Annotated[Any, PlainValidator(read), WithJsonSchema(json)]


def _typed_class(hint: Any, found: Any, name: str) -> Any:
    if found in SCALARS:
        return Annotated[SCALARS[found], Expected(hint)]
    if found in CONTAINERS:
        return Annotated[_container(CONTAINERS[found], get_args(hint)), Expected(hint)]
    if found in READERS:
        read, json = READERS[found]
        return leaf(partial(read, hint=hint), **json)
    if found is None:
        return leaf(partial(_refuse, hint=hint), words=str(hint))
    if is_typeddict(found):
        return typed(_schema_of(found), name)
    if issubclass(found, enum.Enum):
        return _one_of(hint, tuple(found))
    if found is type:
        return leaf(
            partial(_class, hint=hint, name=name), type="string", words="the import path of a class"
        )
    words = "a mapping that describes a "
    if found is abc.Callable:
        words += "module to be called, such as {kind: GELU} (a function cannot be named)"
        return leaf(partial(_callable, name=name), type="object", words=words)
    words += public_name(found)
    return leaf(partial(_described, found=found, name=name), object=found, words=words)


def _container(kind: Any, inner: tuple[Any, ...]) -> Any:
    if kind is dict and inner and is_unknown(strip(inner[1])[0]) and strip(inner[1])[1] is None:
        return kind[FREE, FREE]  # `kind` and all
    if not inner:
        return (
            kind if kind is dict else kind[typed(Any), ...] if kind is tuple else kind[typed(Any)]
        )
    return kind[tuple(part if part is Ellipsis else typed(part) for part in inner)]


def _one_of(hint: Any, options: tuple[Any, ...]) -> Any:
    """One of several values; a member of an enum by its name or its value."""
    names = [getattr(option, "name", option) for option in options]

    def read(value: Any) -> Any:
        for option, name in zip(options, names, strict=True):
            content = getattr(option, "value", option)
            if (type(content) is type(value) and content == value) or (
                name is not option and value == name
            ):
                return option
        texts = [name for name in names if type(name) is str]
        raise mismatch(hint, near_names(value, texts) if type(value) is str else ())

    return leaf(read, enum=names)


def _unknown(value: Any, info: Any, name: str) -> Any:
    """An argument that says nothing of its type: data as it is, and objects of the kinds that are
    known here."""
    if isinstance(value, dict) and KIND in value:
        return info.context.placed(value, Place(name or "object", ANYTHING))
    if isinstance(value, dict):
        return info.context.keys(value, {key: typed(Any, str(key)) for key in value})
    return info.context.value(value, list[Any]) if isinstance(value, list) else value


def _described(value: Any, info: Any, found: type, name: str) -> Any:
    """An object of a class that a hint names: `kind` may name a subclass, and is not needed."""
    is_named = isinstance(value, str) and fits(found, ANYTHING)
    if found.__module__ == "builtins" or not (isinstance(value, dict) or is_named):
        raise mismatch(found)
    return info.context.placed(
        value, Place(name or found.__name__, found), None if found in ANYTHING else found
    )


def _callable(value: Any, info: Any, name: str) -> Any:
    """A function cannot be named in a file; an object that can be called may be described."""
    if isinstance(value, dict):
        return info.context.placed(value, Place(name or "object", ANYTHING))
    raise wrong_value(
        "a function cannot be named in a file: describe a module that is called instead, such as "
        "{kind: torch.nn.GELU}."
    )


def _class(value: Any, info: Any, hint: Any, name: str) -> Any:
    """A class as a value: named by its path, and handed over without being called here."""
    wanted = strip(next(iter(get_args(hint)), Any))[0]
    bases = (wanted,) if is_class(wanted) and wanted is not object else ANYTHING
    if not isinstance(value, str):
        raise mismatch(hint)
    try:
        return resolve_kind(value, Place(name or "object", bases), info.context.folder)
    except RefusedError as error:
        raise mistake(str(error)) from None


def _schema_of(found: Any) -> Schema:
    hints = hints_of(found) or found.__annotations__
    return Schema(
        {name: Entry(hint, name in found.__required_keys__) for name, hint in hints.items()}
    )


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function, without hints whose names cannot be resolved at run time."""
    function = inspect.unwrap(function)
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # a name that only a type checker imports: the others are found one by one
        return _hints_one_by_one(
            getattr(function, "__annotations__", {}), getattr(function, "__globals__", {})
        )


def _hints_one_by_one(annotations: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, annotation in annotations.items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= get_type_hints(holder, globalns=names, localns={}, include_extras=True)
        except Exception:
            continue
    return found


def _dtype(value: Any, hint: Any) -> torch.dtype:
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    known = {key: item for key, item in vars(torch).items() if isinstance(item, torch.dtype)}
    if name not in known:
        raise mismatch(hint, near_names(name, list(known)))
    return known[name]


def _device(value: Any, hint: Any) -> torch.device:
    try:
        if type(value) in (str, int):
            return torch.device(value)
    except (RuntimeError, ValueError):
        pass
    raise mismatch(hint)


def _tensor(value: Any, hint: Any) -> torch.Tensor:
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise mismatch(hint) from None


def _refuse(value: Any, hint: Any) -> Any:
    raise mismatch(hint)


def _number(value: Any) -> Any:
    """Refuse what pydantic would take as a whole number: text, truth values, and floats too large
    to be exact."""
    if isinstance(value, bool | str) or (isinstance(value, float) and abs(value) >= 2**53):
        raise ValueError
    return value


def _float(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) < 2**1000 else value


READERS: dict[Any, tuple[Callable[..., Any], dict[str, Any]]] = {
    torch.dtype: (_dtype, {"type": "string", "words": "a dtype such as float32"}),
    torch.device: (_device, {"type": "string", "words": "a device such as cpu or cuda:0"}),
    torch.Tensor: (_tensor, {"type": ["array", "number"], "words": "a list of numbers"}),
}
WHOLE = Annotated[int, Strict(False), BeforeValidator(_number)]
FREE: Any = leaf(lambda value: value)
NUMBER = Annotated[float, Strict(), BeforeValidator(_float)]
SCALARS: dict[Any, Any] = {
    str: Annotated[str, Strict()],
    bool: Annotated[bool, Strict()],
    int: WHOLE,
    float: NUMBER,
    complex: NUMBER,
    type(None): None,
    torch.Size: Annotated[list[WHOLE], AfterValidator(torch.Size)],
    **dict.fromkeys(PATHS, Annotated[Path, WithJsonSchema({"type": "string", "words": "a path"})]),
}
