"""How an object will be made: what checking leaves behind, and building carries out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from .problems import ConfigError, Problem


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
