"""What a config may hold: the keys of a file, and the places in it where an object is described by
its `kind`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ValidationError

from .tree import ConfigError, Node, Problem, child_of, join_key

KIND = "kind"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping.

    Args:
        accepts: a type hint, which may hold places (`Annotated[Any, place]`, or `one_of_kind`,
            `list_of` and `mapping_of`), or a `Schema` for a nested mapping with keys of its own.
        required: whether the key must be there.
        description: for the message where it is missing, and for editors.

    >>> from loopwright.config import Entry
    >>> Entry(int | None, description="The seed of all randomness.").required
    False
    """

    accepts: Any
    required: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The keys that a mapping in a config may have; any other is a mistake.

    Args:
        entries: what each key accepts.
        description: the title of the JSON schema.

    >>> from loopwright.config import Entry, Schema
    >>> list(Schema({"seed": Entry(int), "name": Entry(str, required=True)}).entries)
    ['seed', 'name']
    """

    entries: Mapping[str, Entry]
    description: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place in a config where `kind` names a class and the keys beside it are its constructor's
    arguments.

    Only real subclasses of `needs` (one type or several; for a Protocol, classes with its methods)
    are ever called.

    Args:
        name: what the object is called in messages.
        needs: what the object must be.
        given: constructor arguments that the program supplies (`params` of an optimizer): never
            asked for in the file, refused there, and passed to `build` as keywords. Arguments that
            a class does not take are left out.
        short: short names for `kind`, each with its import path. A function may be used here, and
            only here. Leave it out for the short names of all that ships for `needs` (`AdamW`,
            `EarlyStopping`, ...); `{}` for none.
        default: the `kind` where a file names none, as a short name or an import path.
        also: keys beside `kind` that the program reads itself, checked against their own entries
            and never passed to the class (`optimizer` inside `model`).
        several: whether several objects may be described instead of one, each under a name of the
            user's choice.
        description: for editors.

    >>> from torch.optim import Optimizer
    >>> from loopwright.config import Place
    >>> Place("optimizer", Optimizer, given=("params",)).wanted
    'torch.optim.Optimizer'
    """

    name: str
    needs: type | tuple[type, ...]
    given: Collection[str] = ()
    short: Mapping[str, str] | None = None
    default: str | None = None
    also: Mapping[str, Entry] = field(default_factory=dict)
    several: bool = False
    description: str = ""

    @property
    def bases(self) -> tuple[type, ...]:
        return self.needs if isinstance(self.needs, tuple) else (self.needs,)

    @property
    def wanted(self) -> str:
        """What is needed, in words for a message."""
        return " or ".join(public_name(base) for base in self.bases)


def public_name(cls: type) -> str:
    """The shortest import path of a class: `torch.nn.Module` rather than where it is defined."""
    parts = cls.__module__.split(".")
    for count in range(1, len(parts)):
        module = sys.modules.get(".".join(parts[:count]))
        if module is not None and vars(module).get(cls.__name__) is cls:
            return f"{module.__name__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def one_of_kind(place: Place) -> Any:
    """The hint for an object described in this place.

    >>> from torch import nn
    >>> from loopwright.config import Entry, Place, one_of_kind
    >>> entry = Entry(one_of_kind(Place("model", nn.Module)), required=True)
    """
    return Annotated[Any, place]


def list_of(place: Place) -> Any:
    """The hint for a list of objects, each described in this place.

    >>> from torch import nn
    >>> from loopwright.config import Entry, Place, list_of
    >>> entry = Entry(list_of(Place("layer", nn.Module)))
    """
    return list[Annotated[Any, place]]


def mapping_of(place: Place) -> Any:
    """The hint for objects with names of the user's choice, each described in this place.

    >>> from torch.utils.data import Dataset
    >>> from loopwright.config import Entry, Place, mapping_of
    >>> entry = Entry(mapping_of(Place("dataset", Dataset)))
    """
    return dict[str, Annotated[Any, place]]


def describes_several(value: Any, place: Place) -> bool:
    """Whether a mapping has several objects under names, rather than one with a `kind`."""
    if not place.several or not isinstance(value, dict) or KIND in value:
        return False
    children = [value[name] for name in names_of(value, place)]
    is_described = any(isinstance(child, dict) and KIND in child for child in children)
    return is_described and all(isinstance(child, dict | str) for child in children)


def names_of(value: Mapping[Any, Any], place: Place) -> list[Any]:
    """The names of the objects in a mapping that describes several."""
    return [name for name in value if name not in place.also]


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """A pydantic model with the values of its fields, which it checks once more when objects among
    them are built."""

    model: type[BaseModel]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """A call of a class with checked arguments.

    takes: the names of the arguments that the program supplies when it builds; `needed` are
    required ones among them. positional: the names of the arguments that are passed by position;
    `variadic` is the name of `*args`.
    """

    target: Callable[..., Any]
    kind: str
    arguments: Mapping[str, Any]
    takes: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    positional: Collection[str] = ()
    variadic: str | None = None


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the objects in a checked value of this name; `given` are the arguments that the
    program supplies."""

    given: Mapping[str, Any]
    name: str

    def make(self, value: Any, node: Node, key: str) -> Any:
        """The value with its recipes carried out; the node is the part of the config that it was
        made of."""
        if isinstance(value, Called):
            return self.call(value, node, key)
        if isinstance(value, Modelled):
            return self.model(value, node, key)
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.parts(dict(enumerate(value)), node, key).values())
        return self.parts(value, node, key) if type(value) is dict else value

    def parts(self, values: Mapping[Any, Any], node: Node, key: str) -> dict[Any, Any]:
        """What is made of each value, with the child of the node that has its name, if there is
        one."""
        made = {}
        for name, value in values.items():
            child = child_of(node, str(name))
            made[name] = self.make(
                value, child or node, key if child is None else join_key(key, name)
            )
        return made

    def call(self, recipe: Called, node: Node, key: str) -> Any:
        label = f"{key or self.name} (kind: {recipe.kind})"
        supplied = {name: value for name, value in self.given.items() if name in recipe.takes}
        missing = recipe.needed - supplied.keys()
        if missing:
            raise TypeError(
                f"{label}: the program must supply {', '.join(sorted(missing))}, but did not."
            )
        keywords = self.parts(recipe.arguments, node, key)
        positional = [keywords.pop(name) for name in recipe.positional if name in keywords]
        rest = keywords.pop(recipe.variadic, ())
        try:
            return recipe.target(*positional, *rest, **keywords, **supplied)
        except Exception as error:
            error.add_note(f"raised while {label} was built")
            raise

    def model(self, recipe: Modelled, node: Node, key: str) -> BaseModel:
        try:
            return recipe.model.model_validate(self.parts(recipe.fields, node, key))
        except ValidationError as error:
            raise ConfigError(
                [Problem(node.file, node.line, key, item["msg"]) for item in error.errors()]
            ) from None
