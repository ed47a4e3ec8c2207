"""Checking a config as a whole, and building its objects."""

from __future__ import annotations

import os
import sys
from collections import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from torch import nn

from ..text import near_names, nearest
from .arguments import (
    Argument,
    Arguments,
    arguments_of,
    checker_of,
    fields_of,
    is_model,
    model_in,
    needs_building,
)
from .compose import Config
from .hints import (
    CONTAINERS,
    SCALARS,
    choices_of,
    class_of,
    describe,
    is_unknown,
    options_of,
    strip,
)
from .kinds import (
    ANYTHING,
    KIND,
    Place,
    RefusedError,
    Schema,
    beside,
    check_class,
    describes_several,
    fits,
    is_class,
    names_of,
    one_of_kind,
    public_name,
    resolve_kind,
)
from .tree import ConfigError, Node, Problem, child_of, join_key, to_node
from .yaml import read_file

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
    return ConfigValidation(config.folder).check(config.root.copy(config.key), schema)[1]


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
    folder = None
    if isinstance(node, Config):
        folder = node.folder
        root = node.root.copy(node.key)
    else:
        root = to_node(dict(node), HERE, None).copy()
    with beside(folder):
        recipe, problems = ConfigValidation(folder).check(root, one_of_kind(place))
        if problems:
            raise ConfigError(problems)
        return Builder(given, place.name).make(recipe)


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
    recipe, problems = ConfigValidation(None).check(root.copy(), model)
    if problems:
        raise ConfigError(problems)
    found: Model = Builder({}, model.__name__).make(recipe)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Modelled:
    """A pydantic model with the values of its fields, which it checks once more when objects among
    them are built."""

    node: Node
    model: type[BaseModel]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """A call of a class with checked values; `given` are the names of the arguments that the
    program supplies when it builds."""

    node: Node
    target: Callable[..., Any]
    kind: str
    values: Mapping[str, Any]
    arguments: Arguments
    given: Collection[str]


@dataclass
class ConfigValidation:
    """One check of a config: each value is read by the hint of its key, and mistakes are collected.

    outer: the outermost place that is being checked; objects of the same kind inside it are given
    the same arguments.
    """

    folder: Path | None
    outer: Place | None = None
    problems: list[Problem] = field(default_factory=list)

    def check(self, node: Node, hint: Any) -> tuple[Any, list[Problem]]:
        """What a node is by a hint, with recipes for its objects; and every mistake in it."""
        with beside(self.folder):
            found = self.read(node, hint)
        return found, list(dict.fromkeys(self.problems))

    def add(self, node: Node, message: str, name: str = "") -> None:
        """A mistake at a node, or in the key of this name in it."""
        key = join_key(node.key, name) if name else node.key
        self.problems.append(node.problem(key, message))

    def wrong(self, node: Node, hint: Any) -> None:
        """A value that is not what a hint asks for."""
        self.add(node, f"is {node.shown()}; expected {describe(hint)}.")

    def read(self, node: Node, hint: Any, name: str = "") -> Any:
        """The value that a hint asks for; None where there is a mistake.

        name: what an object is called in messages, where its class does not say.
        """
        if isinstance(hint, Schema):
            return self.schema(node, hint)
        hint, place = strip(hint)
        if place is not None:
            return self.placed(node, place)
        if options_of(hint):
            return self.union(node, hint, name)
        if is_unknown(hint):
            return self.anything(node, name)
        if choices_of(hint) is not None:
            return self.choice(node, hint)
        found = class_of(hint)
        if found in SCALARS:
            return self.scalar(node, hint)
        if found in CONTAINERS:
            return self.container(node, hint)
        if found is None or (found.__module__ == "builtins" and found is not type):
            return self.wrong(node, hint)
        if found is type:
            return self.named_class(node, hint, name)
        is_mapping = isinstance(node.value, dict)
        if found is abc.Callable and is_mapping:
            return self.placed(node, Place(name or "object", ANYTHING))
        if found is not abc.Callable and (is_mapping or self.is_kind(node, found)):
            default = None if found in ANYTHING else found
            return self.placed(node, Place(name or found.__name__, found), default)
        return self.wrong(node, hint)

    def is_kind(self, node: Node, found: Any) -> bool:
        return isinstance(node.value, str) and fits(found, ANYTHING)

    def scalar(self, node: Node, hint: Any) -> Any:
        try:
            return SCALARS[class_of(hint)][0](node.plain())
        except (TypeError, ValueError, OverflowError, RuntimeError, LookupError, AttributeError):
            return self.wrong(node, hint)

    def choice(self, node: Node, hint: Any) -> Any:
        """One of several values; a member of an enum by its name or its value."""
        choices = choices_of(hint) or ()
        value = node.value
        for name, option in choices:
            content = getattr(option, "value", option)
            is_content = type(content) is type(value) and content == value
            if is_content or (name is not option and value == name):
                return option
        return self.wrong(node, hint)

    def union(self, node: Node, hint: Any, name: str) -> Any:
        """The first alternative that fits, those that keep the value's type before others; where
        none does, the mistakes inside of the one that fits best."""
        order = [type(node.value), str, bool, int, float, type(None), dict, list]

        def preference(option: Any) -> int:
            found = class_of(option)
            return order.index(found) if found in order else len(order)

        tries = []
        for option in sorted(options_of(hint), key=preference):
            trial = ConfigValidation(self.folder, outer=self.outer)
            value = trial.read(node, option, name)
            if not trial.problems:
                return value
            if any(problem.key != node.key for problem in trial.problems):
                tries.append(trial)
        if not tries:
            return self.wrong(node, hint)
        best = min(tries, key=lambda trial: len(trial.problems))
        self.problems += best.problems
        return None

    def container(self, node: Node, hint: Any) -> Any:
        kind = CONTAINERS[class_of(hint)]
        inner = get_args(hint)
        if kind is dict:
            return self.mapping(node, hint, inner or (Any, Any))
        inner = inner or (Any, Ellipsis)
        if not isinstance(node.value, list):
            return self.wrong(node, hint)
        size = len(node.value)
        is_fixed = kind is tuple and inner[-1] is not Ellipsis
        hints = list(inner) if is_fixed else [inner[0]] * size
        if len(hints) != size:
            return self.wrong(node, hint)
        values = [self.read(*item) for item in zip(node.value, hints, strict=True)]
        try:
            return kind(values)
        except TypeError:  # a set of lists or mappings
            return self.wrong(node, hint)

    def mapping(self, node: Node, hint: Any, inner: tuple[Any, ...]) -> Any:
        """A mapping whose keys and values have a hint each."""
        if not isinstance(node.value, dict):
            return self.wrong(node, hint)
        plain, place = strip(inner[1])
        if is_unknown(plain) and place is None:
            return node.plain()  # `kind` and all
        found = {}
        for name, child in node.value.items():
            own = self.read(Node(name, child.file, child.line, key=child.key), inner[0])
            found[own] = self.read(child, inner[1])
        return found

    def anything(self, node: Node, name: str) -> Any:
        """An argument that says nothing of its type: data as it is, and objects of the kinds that
        are known here."""
        if isinstance(node.value, list):
            return [self.read(child, Any) for child in node.value]
        if not isinstance(node.value, dict):
            return node.value
        if KIND in node.value:
            return self.placed(node, Place(name or "object", ANYTHING))
        return {each: self.read(child, Any, str(each)) for each, child in node.value.items()}

    def named_class(self, node: Node, hint: Any, name: str) -> Any:
        """A class as a value: named by its path, and handed over without being called here."""
        wanted = strip(next(iter(get_args(hint)), Any))[0]
        bases = (wanted,) if is_class(wanted) and wanted is not object else ANYTHING
        if not isinstance(node.value, str):
            return self.wrong(node, hint)
        try:
            return resolve_kind(node.value, Place(name or "object", bases), self.folder)
        except RefusedError as error:
            return self.add(node, str(error))

    def schema(self, node: Node, schema: Schema) -> dict[Any, Any]:
        """A mapping with known keys."""
        entries = schema.entries
        found: dict[Any, Any] = {}
        if not isinstance(node.value, dict):
            self.wrong(node, schema)
            return found
        for name, child in node.value.items():
            if name in entries:
                found[name] = self.read(child, entries[name].accepts, str(name))
            else:
                self.add(child, f"unknown key; {nearest(str(name), entries)}")
        for name, entry in entries.items():
            if entry.required and name not in node.value:
                self.add(node, "is missing.", name)
        return found

    def placed(self, node: Node, place: Place, default: type | None = None) -> Any:
        """An object that is described by its `kind` and arguments, or several by their names where
        that may be."""
        if not describes_several(node.plain(), place):
            return self.object(node, place, default)
        names = names_of(node.value, place)
        found = {}
        for name, child in node.value.items():
            if name in names:
                found[name] = self.object(child, place)
            else:
                self.add(
                    child,
                    f"is next to several objects ({', '.join(map(str, names))}): put one into "
                    f"each of them, or one {name} for all of them at the top of the file.",
                )
        return found

    def object(self, node: Node, place: Place, default: type | None = None) -> Any:
        """The recipe for one object; a bare `kind` as text stands for a mapping with nothing else
        in it."""
        if isinstance(node.value, str):
            children = {KIND: node}
        elif isinstance(node.value, dict):
            children = {str(name): child for name, child in node.children()}
        else:
            return self.wrong(node, one_of_kind(place))
        for name, entry in place.also.items():  # null is the same as leaving one out
            child = children.get(name)
            if child is None and entry.required:
                self.add(node, "is missing.", name)
            elif child is not None and (child.value is not None or entry.required):
                self.read(child, entry.accepts, name)
        try:
            target = self.target(children, place, default)
        except RefusedError as error:
            at = children.get(KIND, node)
            self.problems.append(at.problem(join_key(node.key, KIND), str(error)))
            return None
        outer = self.outer or place
        # a scheduler inside a scheduler is given the same optimizer
        is_same_kind = outer is not place and set(place.bases) & set(outer.bases)
        given = place.given or (outer.given if is_same_kind else ())
        before = self.outer
        self.outer = outer
        try:
            return ObjectCheck(self, node, children, place, target, given).recipe()
        finally:
            self.outer = before

    def target(
        self, children: Mapping[str, Node], place: Place, default: type | None
    ) -> Callable[..., Any]:
        """The class that is called, which is found and not imported from anywhere that it must not
        be."""
        if KIND in children:
            return resolve_kind(children[KIND].plain(), place, self.folder)
        if default is not None:
            path = public_name(default)
            if default.__module__.split(".")[0] in sys.stdlib_module_names:
                raise RefusedError(f"a {path} cannot be described in a file.")
            check_class(default, path, place)
            return default
        if place.default is not None:
            return resolve_kind(place.default, place, self.folder)
        raise RefusedError(f"is missing: name the class of the {place.name}, a {place.wanted}.")


@dataclass
class ObjectCheck:
    """Checks the arguments of one object against what its class takes."""

    validation: ConfigValidation
    node: Node
    children: Mapping[str, Node]
    place: Place
    target: Callable[..., Any]
    given: Collection[str]

    @property
    def kind(self) -> str:
        if KIND in self.children:
            return str(self.children[KIND].value)
        return str(getattr(self.target, "__qualname__", self.target))

    def recipe(self) -> Called | Modelled:
        skipped = {KIND, *self.place.also}
        children = {name: child for name, child in self.children.items() if name not in skipped}
        if is_model(self.target):
            return self.model(self.target, children)
        return self.call(children)

    def call(self, children: Mapping[str, Node]) -> Called:
        arguments = arguments_of(self.target)
        items = {name: item for name, item in arguments.items.items() if name not in self.given}
        values: dict[str, Any] = {}
        if arguments.model is not None and arguments.model in items.keys() - children.keys():
            model: Any = model_in(items.pop(arguments.model).hint)
            own = fields_of(model)
            rest = {
                name: child for name, child in children.items() if name not in items or name in own
            }
            values[arguments.model] = self.model(model, rest, others=items)
            children = {name: child for name, child in children.items() if name not in rest}
        for name in children:
            if name in items:
                values[name] = self.read(name, accepted(items[name]))
            elif not self.is_unknown(name, items, is_open=arguments.is_open):
                values[name] = self.read(name, Any)
        for name, item in items.items():
            if item.is_required and name not in children:
                words = f"{self.kind} takes it, {describe(item.hint)}, and it has no default."
                self.validation.add(self.node, f"is missing: {words}", name)
        return Called(self.node, self.target, self.kind, values, arguments, self.given)

    def read(self, name: str, hint: Any) -> Any:
        return self.validation.read(self.children[name], hint, name)

    def is_unknown(self, name: str, known: Iterable[str], *, is_open: bool) -> bool:
        """Whether a key that is not an argument is a mistake; where any key is accepted, whether it
        is a misspelt argument."""
        child = self.children[name]
        if name in self.given:
            self.validation.add(child, "is supplied by the program: leave it out.")
            return True
        names = [*known, *self.place.also]
        absent = [other for other in names if other not in self.children]
        if is_open and not near_names(name, absent, cutoff=0.8):
            return False
        what = "unknown key" if is_open else f"unknown key; {self.kind} takes no such argument"
        self.validation.add(child, f"{what}; {nearest(name, names)}")
        return True

    def model(
        self, model: Any, children: Mapping[str, Node], others: Iterable[str] = ()
    ) -> Modelled:
        """The fields of a pydantic model, which checks them itself; objects and nested keys among
        them are ours."""
        known = fields_of(model)
        takes_any = model.model_config.get("extra") == "allow"
        values: dict[str, Any] = {}
        wrong = set()
        for name, child in children.items():
            if name not in known:
                if not self.is_unknown(name, [*known, *others], is_open=takes_any):
                    values[name] = child.plain()
            elif needs_building(known[name].hint):
                before = len(self.validation.problems)
                values[name] = self.read(name, accepted(known[name]))
                if len(self.validation.problems) > before:
                    wrong.add(name)
            else:
                values[name] = child.plain()
        if KIND in known and KIND in self.children:
            values[KIND] = self.children[KIND].plain()
        self.ask_model(model, values, wrong)
        return Modelled(self.node, model, values)

    def ask_model(self, model: Any, values: Mapping[str, Any], reported: set[str]) -> None:
        """What a model says about the values of its fields, but for those that are known to be
        wrong and those that are not built yet."""
        unbuilt = {name for name, value in values.items() if has_recipe(value)}
        try:
            checker_of(model).model_validate(values)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                location = item["loc"]
                is_known = location[0] in reported | unbuilt if location else bool(reported)
                if not is_known:
                    self.add_pydantic(item)
        except Exception as error:
            # A validator that looks into an object cannot run before there is one; it will when
            # the model is built.
            if not unbuilt:
                self.validation.add(self.node, f"{type(error).__name__}: {error}")

    def add_pydantic(self, item: Any) -> None:
        """A mistake in pydantic's words, at its place in the file: without names for the
        alternatives of a union."""
        node = self.node
        for part in item["loc"]:
            node = child_of(node, str(part)) or node
        if item["type"] == "missing":
            self.validation.add(node, "is missing, and has no default.", str(item["loc"][-1]))
            return
        text = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        text = f"{text.rstrip('.')}."
        if item["loc"]:
            text = f"is {node.shown()}; {text[:1].lower()}{text[1:]}"
        self.validation.add(node, text)


def accepted(item: Argument) -> Any:
    """What an argument accepts: also null where that is its default, whatever its annotation
    says."""
    plain, place = strip(item.hint)
    if plain is Any and place is None:
        # an argument without annotation whose default is a layer takes layers
        return nn.Module if isinstance(item.default, nn.Module) else Any
    # a hint may be a string that `|` does not take
    return Optional[item.hint] if item.default is None else item.hint  # noqa: UP045


def has_recipe(value: Any) -> bool:
    """Whether there is an object in a value that is not built yet."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        return any(has_recipe(item) for item in value)
    return isinstance(value, Called | Modelled)


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds the objects in a checked value of this name; `given` are the arguments that the
    program supplies."""

    given: Mapping[str, Any]
    name: str

    def make(self, value: Any) -> Any:
        """The value with its recipes carried out."""
        if isinstance(value, Called):
            return self.call(value)
        if isinstance(value, Modelled):
            return self.model(value)
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(map(self.make, value))
        return self.parts(value) if type(value) is dict else value

    def parts(self, values: Mapping[Any, Any]) -> dict[Any, Any]:
        return {name: self.make(value) for name, value in values.items()}

    def call(self, recipe: Called) -> Any:
        label = f"{recipe.node.key or self.name} (kind: {recipe.kind})"
        items = recipe.arguments.items
        supplied = {}
        for name in recipe.given:
            if name in self.given and recipe.arguments.takes(name):
                supplied[name] = self.given[name]
            elif name in items and items[name].is_required:
                raise TypeError(f"{label}: the program must supply {name}, but did not.")
        keywords = self.parts(recipe.values)
        positional: list[Any] = []
        for name, item in items.items():
            if item.is_positional and name in keywords:
                value = keywords.pop(name)
                positional += value if item.is_variadic else [value]
        try:
            return recipe.target(*positional, **keywords, **supplied)
        except Exception as error:
            error.add_note(f"raised while {label} was built")
            raise

    def model(self, recipe: Modelled) -> BaseModel:
        node = recipe.node
        try:
            return recipe.model.model_validate(self.parts(recipe.fields))
        except ValidationError as error:
            items = error.errors()
            raise ConfigError(node.problem(node.key, item["msg"]) for item in items) from None
