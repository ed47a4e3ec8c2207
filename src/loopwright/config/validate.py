"""Nodes against type hints: every mistake is noted, and what is right becomes a recipe for building it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, is_typeddict

import torch

from .hints import (
    CALLABLE,
    LISTS,
    MAPPINGS,
    SETS,
    MismatchError,
    class_of,
    convert,
    describe,
    is_unknown,
    options_of,
    strip,
)
from .kinds import ANYTHING, RefusedError, beside, fits, is_class, resolve_kind
from .places import Entry, Gathered, Mapped, Place, Ready, Recipe, Schema
from .tree import Config, ConfigError, Node, Problem, join_key, near_names, nearest, to_node

KIND = "kind"
NOTHING: Recipe = Ready(None)
SCALAR_HINTS = (str, int, float, bool, type(None))


@dataclass
class Preparer:
    """Checks nodes and turns them into recipes. `given` are the names that the program supplies in `place`."""

    folder: Path | None
    problems: list[Problem] = field(default_factory=list)
    kinds: list[tuple[Place, str]] = field(default_factory=list)  # what was named in which place
    place: Place | None = None  # the outermost place: nested objects of the same kind are given the same

    def add(self, node: Node, key: str, message: str) -> Recipe:
        self.problems.append(Problem(node.file, node.line, key, message))
        return NOTHING

    def mismatch(self, node: Node, key: str, hint: Any, advice: str = "") -> Recipe:
        hint_text = f" {advice[:1].upper()}{advice[1:]}" if advice else ""
        return self.add(node, key, f"is {node.shown()}; expected {describe(hint)}.{hint_text}")

    def value(self, node: Node, hint: Any, key: str) -> Recipe:
        """Whatever a hint asks for."""
        if isinstance(hint, Schema):
            return self.schema(node, hint, key)
        hint, place = strip(hint)
        if place is not None:
            return self.placed(node, place, key)
        if options_of(hint) is not None:
            return self.union(node, hint, key)
        if is_unknown(hint):
            return self.unknown(node, key)
        return self.single(node, hint, key)

    def single(self, node: Node, hint: Any, key: str) -> Recipe:
        """A hint without alternatives."""
        found = class_of(hint)
        if get_origin(hint) is Literal or hint is None or found is None or found in SCALAR_HINTS:
            return self.scalar(node, hint, key)
        if found in (*LISTS, *SETS, tuple, torch.Size):
            return self.items(node, hint, key)
        if found in MAPPINGS:
            return self.mapping(node, hint, key)
        if is_typeddict(found):
            return self.typed_dict(node, found, key)
        if found is torch.Tensor:
            return self.tensor(node, hint, key)
        if found is type:
            return self.named_class(node, hint, key)
        if found is CALLABLE:
            return self.callable(node, hint, key)
        if isinstance(node.value, dict) or (isinstance(node.value, str) and fits(found, ANYTHING)):
            return self.described(node, found, key)
        return self.scalar(node, hint, key)

    def scalar(self, node: Node, hint: Any, key: str) -> Recipe:
        if isinstance(node.value, dict | list):
            return self.mismatch(node, key, hint)
        try:
            return Ready(convert(node.value, hint))
        except MismatchError as error:
            return self.mismatch(node, key, hint, str(error))

    def unknown(self, node: Node, key: str) -> Recipe:
        """An argument that says nothing of its type: data as it is, and objects of the kinds that are known here."""
        if isinstance(node.value, dict):
            if KIND in node.value:
                return self.placed(node, Place(place_name(key, "object"), ANYTHING), key)
            return Mapped({name: self.unknown(child, join_key(key, name)) for name, child in node.value.items()})
        if isinstance(node.value, list):
            return gathered(list, [self.unknown(child, join_key(key, i)) for i, child in enumerate(node.value)])
        return Ready(node.value)

    def union(self, node: Node, hint: Any, key: str) -> Recipe:
        """The first alternative that fits, one of the value's own type before any that would convert it."""
        options = options_of(hint) or ()
        exact = [option for option in options if class_of(option) is type(node.value)]
        tries: list[list[Problem]] = []
        for option in [*exact, *(option for option in options if option not in exact)]:
            attempt = Preparer(self.folder, kinds=self.kinds, place=self.place)
            recipe = attempt.value(node, option, key)
            if not attempt.problems:
                return recipe
            tries.append(attempt.problems)
        inside = [problems for problems in tries if any(problem.key != key for problem in problems)]
        if not inside and len(tries) > 1:
            return self.mismatch(node, key, hint)
        nearest_fit: list[Problem] = min(inside or tries, key=len)
        self.problems.extend(nearest_fit)
        return NOTHING

    def items(self, node: Node, hint: Any, key: str) -> Recipe:
        """A list, as the list, tuple or set that is asked for."""
        found, inner = class_of(hint), get_args(hint)
        if not isinstance(node.value, list):
            return self.mismatch(node, key, hint)
        hints = [inner[0] if inner else Any] * len(node.value)
        if found is tuple and inner and Ellipsis not in inner:
            if len(inner) != len(node.value):
                return self.mismatch(node, key, hint)
            hints = list(inner)
        if found is torch.Size:
            hints = [int] * len(node.value)
        recipes = [self.value(child, hints[i], join_key(key, i)) for i, child in enumerate(node.value)]
        into: Any = found if found in (tuple, set, frozenset, torch.Size) else set if found in SETS else list
        return gathered(into, recipes)

    def mapping(self, node: Node, hint: Any, key: str) -> Recipe:
        """A dict; where its values may be anything they are left as they are, `kind` and all."""
        if not isinstance(node.value, dict):
            return self.mismatch(node, key, hint)
        key_hint, value_hint = get_args(hint) or (Any, Any)
        if is_unknown(strip(value_hint)[0]) and strip(value_hint)[1] is None:
            return Ready(node.plain())
        recipes: dict[Any, Recipe] = {}
        for name, child in node.value.items():
            path = join_key(key, name)
            made = self.value(Node(name, child.file, child.line), key_hint, path)
            recipes[made.value if isinstance(made, Ready) else name] = self.value(child, value_hint, path)
        return Ready({name: item.make({}) for name, item in recipes.items()}) if all_ready(recipes) else Mapped(recipes)

    def typed_dict(self, node: Node, found: Any, key: str) -> Recipe:
        from .arguments import hints_of

        hints = hints_of(found) or found.__annotations__
        entries = {name: Entry(hint, name in found.__required_keys__) for name, hint in hints.items()}
        return self.schema(node, Schema(entries), key)

    def tensor(self, node: Node, hint: Any, key: str) -> Recipe:
        try:
            return Ready(torch.tensor(node.plain()))
        except (TypeError, ValueError, RuntimeError):
            return self.mismatch(node, key, hint)

    def named_class(self, node: Node, hint: Any, key: str) -> Recipe:
        """A class as a value: named by its path, and handed over without being called here."""
        wanted = strip(next(iter(get_args(hint)), Any))[0]
        bases = (wanted,) if is_class(wanted) and wanted is not object else ANYTHING
        if not isinstance(node.value, str):
            return self.add(node, key, f"is {node.shown()}; expected the import path of a class.")
        try:
            return Ready(resolve_kind(node.value, Place(place_name(key, "object"), bases), self.folder))
        except RefusedError as error:
            return self.add(node, key, str(error))

    def callable(self, node: Node, hint: Any, key: str) -> Recipe:
        """A function cannot be named in a file; an object that can be called may be described."""
        if isinstance(node.value, dict):
            return self.placed(node, Place(place_name(key, "object"), ANYTHING), key)
        return self.add(
            node,
            key,
            f"is {node.shown()}; a function cannot be named in a file: describe a module that is called "
            "instead, such as {kind: torch.nn.GELU}.",
        )

    def described(self, node: Node, found: type, key: str) -> Recipe:
        """An object of a class that a hint names: `kind` may name a subclass, and is not needed."""
        if found.__module__ == "builtins":
            return self.mismatch(node, key, found)
        default = None if found in ANYTHING else found
        return self.placed(node, Place(place_name(key, found.__name__), found), key, default=default)

    def schema(self, node: Node, schema: Schema, key: str) -> Recipe:
        """A mapping with known keys."""
        if not isinstance(node.value, dict):
            return self.add(node, key, f"is {node.shown()}; expected a mapping with {', '.join(schema.entries)}.")
        recipes: dict[Any, Recipe] = {}
        for name, child in node.value.items():
            if name not in schema.entries:
                self.add(child, join_key(key, name), f"unknown key; {nearest(str(name), schema.entries)}")
                continue
            recipes[name] = self.value(child, schema.entries[name].accepts, join_key(key, name))
        unknown = [str(name) for name in node.value if name not in schema.entries]
        for name, entry in schema.entries.items():
            is_misspelt = any(near_names(other, [name], cutoff=0.6) for other in unknown)
            if entry.required and name not in node.value and not is_misspelt:
                about = f": {entry.description}" if entry.description else "."
                self.add(node, join_key(key, name), f"is missing{about}")
        return Mapped(recipes)

    def placed(self, node: Node, place: Place, key: str, default: Any = None) -> Recipe:
        """An object that is described by its `kind` and arguments, or several by their names where that may be."""
        from .objects import prepare_object

        if not describes_several(node, place):
            return prepare_object(self, node, place, key, default)
        for name in place.also:
            if name in node.value:
                self.add(
                    node.value[name],
                    join_key(key, name),
                    f"stands beside several objects ({', '.join(map(str, names_of(node, place)))}): put one into each "
                    f"of them, or a single {name} for all at the top of the file.",
                )
        return Mapped(
            {name: prepare_object(self, node.value[name], place, join_key(key, name)) for name in names_of(node, place)}
        )


def describes_several(node: Node, place: Place) -> bool:
    """Whether a node has several objects under names, rather than one with a `kind`."""
    if not place.several or not isinstance(node.value, dict) or KIND in node.value:
        return False
    children = [node.value[name].value for name in names_of(node, place)]
    is_described = any(isinstance(child, dict) and KIND in child for child in children)
    return is_described and all(isinstance(child, dict | str) for child in children)


def names_of(node: Node, place: Place) -> list[Any]:
    """The names of the objects in a node that describes several."""
    return [name for name in node.value if name not in place.also]


def place_name(key: str, otherwise: str) -> str:
    """What a place is called in messages: its key, unless that is a number in a list."""
    last = key.rpartition(".")[2]
    return last if last and not last.isdecimal() else otherwise


def all_ready(recipes: dict[Any, Recipe]) -> bool:
    return all(isinstance(item, Ready) for item in recipes.values())


def gathered(into: Any, recipes: list[Recipe]) -> Recipe:
    """The items together, as a value if all of them are there already."""
    if all(isinstance(item, Ready) for item in recipes):
        try:
            return Ready(into(item.make({}) for item in recipes))
        except TypeError:  # a set of what cannot be in a set: an error when it is built
            pass
    return Gathered(into, recipes)


HERE = "config"


def build(node: Config | Mapping[str, Any], place: Place, /, **given: Any) -> Any:
    """Check one node and construct its object, with those it is made of; raises ConfigError before anything is built.

    node: `config.at("model")`, whose mistakes are reported with file and line and whose file's folder is imported from,
        or a plain mapping.
    given: values for the names in `place.given`; what the class does not take is left out.
    """
    unknown = given.keys() - set(place.given)
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: name what is given in Place({place.name!r}, given=...) too.")
    root, folder, key = (node.root, node.folder, node.key) if isinstance(node, Config) else (_plain(node), None, "")
    preparer = Preparer(folder)
    with beside(folder):
        recipe = preparer.placed(root, place, key)
        if preparer.problems:
            raise ConfigError(preparer.problems)
        return recipe.make(given)


def _plain(node: Mapping[str, Any]) -> Node:
    return to_node(dict(node), HERE, None)


def check(config: Config, schema: Schema) -> list[Problem]:
    """Unknown keys, wrong types, missing arguments and kinds that cannot be used; nothing is built.

    Modules that a `kind` names are imported, by the rules of `importing`; no class is called, except pydantic models,
    which check their own fields. An empty list is a config that can be built: raise `ConfigError(problems)` otherwise.
    """
    preparer = Preparer(config.folder)
    with beside(config.folder):
        preparer.value(config.root, schema, config.key)
    return list(dict.fromkeys(preparer.problems))
