"""Checking a config as a whole, and building its objects: pydantic checks values, this module keys
and kinds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Optional, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from torch import nn

from ..text import near_names, nearest
from .arguments import (
    EMPTY,
    Argument,
    arguments_of,
    fields_of,
    holds_mappings,
    is_model,
    is_open,
    model_in,
    model_mistakes,
    needs_building,
)
from .compose import Config
from .hints import WRONG_VALUE, describe, leaf, mistake, moved, strip, typed, wrong_value
from .kinds import RefusedError, beside, check_class, resolve_kind
from .places import (
    KIND,
    Builder,
    Called,
    Entry,
    Modelled,
    Place,
    Schema,
    describes_several,
    names_of,
    one_of_kind,
    public_name,
)
from .tree import ConfigError, Node, Problem, child_of, join_key, to_node
from .yaml import read_file

Mistakes = list[InitErrorDetails]
HERE = "config"
Model = TypeVar("Model", bound=BaseModel)


def check(config: Config, schema: Schema) -> list[Problem]:
    """Find unknown keys, wrong types, missing arguments and kinds that cannot be used; nothing is
    built.

    Modules that a `kind` names are imported, by the rules of `kinds`; no class is called, except
    pydantic models, which check their own fields.

    Args:
        config: what `load_config` returned.
        schema: the keys that it may have.

    Returns:
        Every mistake; none where the config can be built. Raise `ConfigError(problems)` otherwise.

    >>> from loopwright.config import Config, Entry, Schema, check
    >>> from loopwright.config.tree import to_node
    >>> config = Config(to_node({"sed": 1, "size": "big"}, "run.yaml", None), ".")
    >>> for problem in check(config, Schema({"seed": Entry(int), "size": Entry(float)})):
    ...     print(problem.key, problem.message)
    sed unknown key; did you mean seed?
    size is the text 'big'; expected a number.
    """
    return ConfigValidation(config.folder).check(config.root, schema, config.key)[1]


def build(node: Config | Mapping[str, Any], place: Place, /, **given: Any) -> Any:
    """Check one node and construct its object with all its parts; raises ConfigError before
    anything is built.

    Args:
        node: `config.at("model")`, whose mistakes are reported with file and line and whose file's
            folder is imported from, or a plain mapping.
        place: what the object must be.
        given: values for the names in `place.given`; arguments that the class does not take are
            left out.

    >>> from torch import nn
    >>> from loopwright.config import Place, build
    >>> build({"kind": "Linear", "in_features": 2, "out_features": 3}, Place("model", nn.Module))
    Linear(in_features=2, out_features=3, bias=True)
    """
    unknown = given.keys() - set(place.given)
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))}: name what is given in Place({place.name!r}, "
            "given=...) too."
        )
    config = node if isinstance(node, Config) else None
    root = config.root if config is not None else to_node(dict(node), HERE, None)  # type: ignore[arg-type]
    folder, key = (config.folder, config.key) if config is not None else (None, "")
    with beside(folder):
        recipe, problems = ConfigValidation(folder).check(root, one_of_kind(place), key)
        if problems:
            raise ConfigError(problems)
        return Builder(given, place.name).make(recipe, root, key)


def load_model(
    source: str | os.PathLike[str] | Mapping[str, Any],
    model: type[Model],
    *,
    under: str | None = None,
) -> Model:
    """Read a YAML or JSON file, or a mapping, into a pydantic model.

    For an interface whose settings are one model: unknown settings with the nearest known ones,
    wrong values and missing ones are all in one ConfigError, with file and line.

    Args:
        source: The path of a file, or the values by name.
        model: The pydantic model.
        under: A key under which all settings may stand.

    >>> from pydantic import BaseModel
    >>> from loopwright.config import load_model
    >>> class Settings(BaseModel):
    ...     epochs: int = 10
    >>> load_model({"epochs": 3}, Settings)
    Settings(epochs=3)
    >>> load_model({"epohcs": 3}, Settings)
    Traceback (most recent call last):
        ...
    loopwright.config.tree.ConfigError: 1 mistake in the configuration:
    config: epohcs
        unknown key; Settings takes no such argument; did you mean epochs?
    """
    root = (
        to_node(dict(source), HERE, None)
        if isinstance(source, Mapping)
        else read_file(Path(source))
    )
    if under is not None and set(root.value) == {under}:
        root = root.value[under]
    recipe, problems = ConfigValidation(None).check(root, model, "")
    if problems:
        raise ConfigError(problems)
    found: Model = Builder({}, model.__name__).make(recipe, root, "")
    return found


@dataclass
class ConfigValidation:
    """One check of a config, which is the context of pydantic's validators.

    kinds: which kind was named in which place.
    outer: the outermost place that is being checked; objects of the same kind inside it are given
    the same arguments.
    """

    folder: Path | None
    kinds: list[tuple[Place, str]] = field(default_factory=list)
    outer: Place | None = None

    def check(self, node: Node, hint: Any, key: str) -> tuple[Any, list[Problem]]:
        """What a node is by a hint, with recipes for its objects; and every mistake in it."""
        try:
            with beside(self.folder):
                return self.value(node.plain(), hint), []
        except ValidationError as error:
            problems = [problem_of(item, node, key) for item in error.errors(include_url=False)]
            return None, list(dict.fromkeys(problems))

    def value(self, value: Any, hint: Any, name: str = "") -> Any:
        """The value that a hint asks for; raises pydantic's ValidationError."""
        return TypeAdapter(typed(hint, name)).validate_python(value, context=self)

    def keys(self, value: Mapping[Any, Any], hints: Mapping[Any, Any]) -> dict[Any, Any]:
        """The values of a mapping by their hints; raises pydantic's ValidationError."""
        found, mistakes = self.try_keys(value, hints)
        return found if not mistakes else fail(mistakes)

    def try_keys(
        self, value: Mapping[Any, Any], hints: Mapping[Any, Any]
    ) -> tuple[dict[Any, Any], Mistakes]:
        """The values of a mapping by their hints, and what is wrong with the others; a mistake may
        stand for a hint."""
        found: dict[Any, Any] = {}
        mistakes: Mistakes = []
        for name, hint in hints.items():
            if isinstance(hint, PydanticCustomError):
                mistakes.append(InitErrorDetails(type=hint, loc=(name,), input=None))
                continue
            try:
                found[name] = TypeAdapter(hint).validate_python(value[name], context=self)
            except ValidationError as error:
                mistakes += moved(error, name)
        return found, mistakes

    def schema(self, value: Any, schema: Schema) -> dict[Any, Any]:
        """A mapping with known keys."""
        entries = schema.entries
        if not isinstance(value, dict):
            raise wrong_value(f"expected a mapping with {', '.join(entries)}.")
        unknown = [str(name) for name in value if name not in entries]
        hints = {
            name: typed(entries[name].accepts, name)
            if name in entries
            else mistake(f"unknown key; {nearest(str(name), entries)}")
            for name in value
        }
        for name, entry in entries.items():
            is_misspelt = any(near_names(other, [name], cutoff=0.6) for other in unknown)
            if entry.required and name not in value and not is_misspelt:
                hints[name] = missing(entry)
        return self.keys(value, hints)

    def placed(self, value: Any, place: Place, default: type | None = None) -> Any:
        """An object that is described by its `kind` and arguments, or several by their names where
        that may be."""
        if not describes_several(value, place):
            return self.object(value, place, default)
        names = names_of(value, place)
        one = leaf(lambda item, info: info.context.object(item, place))
        return self.keys(
            value,
            {
                name: one
                if name in names
                else mistake(
                    f"is next to several objects ({', '.join(map(str, names))}): put one into "
                    f"each of them, or one {name} for all of them at the top of the file."
                )
                for name in value
            },
        )

    def object(self, value: Any, place: Place, default: type | None = None) -> Any:
        """The recipe for one object; a bare `kind` as text stands for a mapping with nothing else
        in it."""
        value = {KIND: value} if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise wrong_value(f"expected a mapping with `kind:` (a {place.wanted}).")
        value = {str(name): item for name, item in value.items()}
        try:
            target = self.target(value, place, default)
        except RefusedError as error:
            return self.keys(value, {KIND: mistake(str(error)), **also_hints(value, place)})
        if KIND in value:
            self.kinds.append((place, value[KIND]))
        outer = self.outer
        self.outer = self.outer or place
        try:
            return ObjectCheck(self, value, place, target, given_in(place, outer or place)).recipe()
        finally:
            self.outer = outer

    def target(
        self, value: Mapping[str, Any], place: Place, default: type | None
    ) -> Callable[..., Any]:
        """The class that is called, which is found and not imported from anywhere that it must not
        be."""
        if KIND in value:
            return resolve_kind(value[KIND], place, self.folder)
        if default is not None:
            path = public_name(default)
            if default.__module__.split(".")[0] in sys.stdlib_module_names:
                raise RefusedError(f"a {path} cannot be described in a file.")
            check_class(default, path, place)
            return default
        if place.default is not None:
            return resolve_kind(place.default, place, self.folder)
        near = near_names(KIND, list(value), cutoff=0.7)
        hint = f"; is {near[0]} meant to be kind?" if near else "."
        raise RefusedError(
            f"is missing: name the class of the {place.name}, a {place.wanted}{hint}"
        )


def given_in(place: Place, outer: Place) -> set[str]:
    """The arguments that the program supplies; a scheduler inside a scheduler is given the same
    optimizer."""
    is_same_kind = outer is not place and not place.given and set(place.bases) & set(outer.bases)
    return set(outer.given if is_same_kind else place.given)


def also_hints(value: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The keys that the program reads itself; null is the same as leaving one out."""
    hints: dict[str, Any] = {}
    for name, entry in place.also.items():
        if name not in value and entry.required:
            hints[name] = missing(entry)
        elif name in value and (value[name] is not None or entry.required):
            hints[name] = typed(entry.accepts, name)
    return hints


@dataclass
class ObjectCheck:
    """Checks the arguments of one object against what its class takes.

    suspects: missing keys that an unknown one was probably meant to be.
    """

    validation: ConfigValidation
    value: Mapping[str, Any]
    place: Place
    target: Callable[..., Any]
    given: set[str]
    suspects: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        return str(self.value.get(KIND, getattr(self.target, "__qualname__", self.target)))

    def recipe(self) -> Called | Modelled:
        _, wrong = self.validation.try_keys(self.value, also_hints(self.value, self.place))
        children = {
            name: item for name, item in self.value.items() if name not in {KIND, *self.place.also}
        }
        recipe, mistakes = (
            self.model(self.target, children) if is_model(self.target) else self.call(children)
        )
        return recipe if not wrong + mistakes else fail(wrong + mistakes)

    def call(self, children: Mapping[str, Any]) -> tuple[Called, Mistakes]:
        arguments = arguments_of(self.target)
        items = {name: item for name, item in arguments.items.items() if name not in self.given}
        parts: dict[str, Any] = {}
        mistakes: Mistakes = []
        model = arguments.model
        if model is not None and model.name not in children and model.name not in self.given:
            del items[model.name]
            found: Any = model_in(model.hint)
            rest = {
                name: item
                for name, item in children.items()
                if name not in items or name in fields_of(found)
            }
            parts[model.name], mistakes = self.model(found, rest, others=items)
            children = {name: item for name, item in children.items() if name not in rest}
        values, wrong = self.arguments(items, children, is_open=arguments.is_open)
        takes = frozenset(name for name in self.given if arguments.takes(name))
        needed = frozenset(
            name for name in takes if name in arguments.items and arguments.items[name].is_required
        )
        positional = [
            name for name, item in items.items() if item.is_positional and not item.is_variadic
        ]
        variadic = next((name for name, item in items.items() if item.is_variadic), None)
        recipe = Called(
            self.target, self.kind, {**parts, **values}, takes, needed, positional, variadic
        )
        return recipe, mistakes + wrong

    def arguments(
        self, items: Mapping[str, Argument], children: Mapping[str, Any], *, is_open: bool
    ) -> tuple[dict[str, Any], Mistakes]:
        """The value of each argument, with unknown and missing ones among the mistakes."""
        hints = {
            name: typed(accepted(items[name]), name)
            if name in items
            else self.unknown(name, items, children, is_open=is_open) or typed(Any, name)
            for name in children
        }
        for name, item in items.items():
            if item.is_required and name not in children and name not in self.suspects:
                words = (
                    f"is missing: {self.kind} takes it, {describe(item.hint)}, and it has no "
                    "default."
                )
                hints[name] = mistake(words)
        return self.validation.try_keys(children, hints)

    def unknown(
        self, name: str, known: Iterable[str], present: Iterable[str], *, is_open: bool
    ) -> PydanticCustomError | None:
        """The mistake of a key that is not an argument; where any key is accepted, of a misspelt
        argument."""
        if name in self.given:
            return mistake("is supplied by the program: leave it out.")
        names = [*known, *self.place.also]
        absent = [other for other in names if other not in present and other not in self.value]
        near = near_names(name, absent, cutoff=0.8 if is_open else 0.6)
        if is_open and not near:
            return None
        self.suspects |= set(near)
        what = "unknown key" if is_open else f"unknown key; {self.kind} takes no such argument"
        return mistake(f"{what}; {nearest(name, absent if near else names)}")

    def model(
        self, model: Any, children: Mapping[str, Any], others: Iterable[str] = ()
    ) -> tuple[Modelled, Mistakes]:
        """The fields of a pydantic model, which checks them itself; objects and nested keys among
        them are ours."""
        known = fields_of(model)
        hints: dict[str, Any] = {}
        for name in children:
            if name not in known:
                hints[name] = (
                    self.unknown(name, [*known, *others], children, is_open=is_open(model)) or Any
                )
            elif needs_building(known[name].hint) or holds_mappings(known[name].hint):
                hints[name] = typed(accepted(known[name]), name)
        found, mistakes = self.validation.try_keys(children, hints)
        wrong = {item["loc"][0] for item in mistakes} & known.keys()
        values = {name: item for name, item in children.items() if name in known or name in found}
        values |= {
            name: found.get(name)
            for name in hints
            if name in known and needs_building(known[name].hint)
        }
        if KIND in known and KIND in self.value:
            values[KIND] = self.value[KIND]
        for item in model_mistakes(model, values, self.value):
            is_repeated = (
                item["loc"][0] in wrong | self.suspects if item["loc"] else wrong or self.suspects
            )
            if not is_repeated:
                mistakes.append(item)
        return Modelled(model, values), mistakes


def accepted(item: Argument) -> Any:
    """What an argument accepts: also null where that is its default, whatever its annotation
    says."""
    hint = Any if item.hint is EMPTY else item.hint
    plain, place = strip(hint)
    if plain is Any and place is None and isinstance(item.default, nn.Module):
        return nn.Module  # an argument without annotation whose default is a layer takes layers
    if item.default is None and (place is not None or plain is not Any):
        return Optional[hint]  # noqa: UP045 - a hint may be a string that `|` does not take
    return hint


def missing(entry: Entry) -> PydanticCustomError:
    return mistake(f"is missing{f': {entry.description}' if entry.description else '.'}")


def fail(mistakes: Mistakes) -> NoReturn:
    raise ValidationError.from_exception_data("config", mistakes)


def problem_of(item: Any, node: Node, key: str) -> Problem:
    """A mistake with its line: that of the value at its location, or of the mapping where it is
    missing."""
    for before, part in zip((None, *item["loc"]), item["loc"], strict=False):
        if part == "[key]":  # pydantic's word for a mistake in a key itself
            node = Node(before, node.file, node.line)
        else:
            node = child_of(node, str(part)) or node
            key = join_key(key, part)
    text = item["ctx"]["text"]
    return Problem(
        node.file,
        node.line,
        key,
        f"is {node.shown()}; {text}" if item["type"] == WRONG_VALUE else text,
    )
