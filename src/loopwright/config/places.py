"""What a config may hold: the keys of a file, and the places in it where an object is described by its `kind`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ValidationError

from .tree import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping: what it accepts, which is a type hint, and whether it must be there.

    A hint may hold places: `Annotated[Any, place]`, or what `one_of_kind`, `list_of` and `mapping_of` give. A nested
    mapping with keys of its own is a `Schema`.
    """

    accepts: Any
    required: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """The keys that a mapping in a config may have; any other is a mistake."""

    entries: Mapping[str, Entry]
    description: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place in a config where `kind` names a class and the keys beside it are its constructor's arguments.

    Only real subclasses of `needs` (one type or several; for a Protocol, classes with its methods) are ever called.

    needs: what the object must be.
    given: constructor arguments that the program supplies (`params` of an optimizer): never asked for in the file,
        refused there, and passed to `build` as keywords. Those that a class does not take are left out.
    short: short names for `kind`, each with its import path. A function may be used here, and only here. Leave it out
        for the short names of all that ships for `needs` (`AdamW`, `EarlyStopping`, ...); `{}` for none.
    default: the `kind` where a file names none, as a short name or an import path.
    also: keys beside `kind` that the program reads itself, checked against their own entries and never passed to the
        class (`optimizer` inside `model`).
    several: whether several objects may be described instead of one, each under a name of the user's choice.
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
    def short_names(self) -> Mapping[str, str]:
        from .kinds import shipped_names

        return shipped_names(self.bases) if self.short is None else self.short

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
    """The hint for an object described in this place."""
    return Annotated[Any, place]


def list_of(place: Place) -> Any:
    """The hint for a list of objects, each described in this place."""
    return list[Annotated[Any, place]]


def mapping_of(place: Place) -> Any:
    """The hint for objects with names of the user's choice, each described in this place."""
    return dict[str, Annotated[Any, place]]


class Recipe(Protocol):
    """Makes one value; `given` is what the program supplies to the constructors that want it."""

    def make(self, given: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A value that is there already."""

    value: Any

    def make(self, given: Mapping[str, Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Gathered:
    """A list, tuple or set of what other recipes make."""

    into: Callable[[Iterable[Any]], Any]
    items: list[Recipe]

    def make(self, given: Mapping[str, Any]) -> Any:
        return self.into([item.make(given) for item in self.items])


@dataclass(frozen=True, slots=True)
class Mapped:
    """A dict of what other recipes make."""

    items: dict[Any, Recipe]

    def make(self, given: Mapping[str, Any]) -> Any:
        return {key: item.make(given) for key, item in self.items.items()}


@dataclass(frozen=True, slots=True)
class Modelled:
    """A pydantic model, which checks its fields once more now that they are made."""

    model: type[BaseModel]
    fields: dict[str, Recipe]
    origin: Problem

    def make(self, given: Mapping[str, Any]) -> Any:
        values = {name: item.make(given) for name, item in self.fields.items()}
        try:
            return self.model.model_validate(values)
        except ValidationError as error:
            raise ConfigError(
                [Problem(self.origin.file, self.origin.line, self.origin.key, item["msg"]) for item in error.errors()]
            ) from None


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a class that was found fit. `takes` are the names that the program supplies."""

    target: Callable[..., Any]
    keywords: dict[str, Recipe]
    takes: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    positional: list[Recipe] = field(default_factory=list)
    variadic: Recipe | None = None
    label: str = ""

    def make(self, given: Mapping[str, Any]) -> Any:
        supplied = {name: value for name, value in given.items() if name in self.takes}
        missing = self.needed - supplied.keys()
        if missing:
            raise TypeError(f"{self.label}: the program supplies {', '.join(sorted(missing))}, and did not.")
        rest = [] if self.variadic is None else self.variadic.make(given)
        positional = [item.make(given) for item in self.positional]
        keywords = {name: item.make(given) for name, item in self.keywords.items()}
        try:
            return self.target(*positional, *rest, **keywords, **supplied)
        except Exception as error:
            error.add_note(f"raised while {self.label} was built")
            raise
