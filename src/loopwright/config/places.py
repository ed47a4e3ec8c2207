"""What a config may hold: the keys of a file, and the places in it where an object is described by its `kind`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any


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
        from .shipped import shipped_names

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
