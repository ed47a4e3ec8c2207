"""One node with a `kind`: the class is found, its arguments are checked, and a recipe for the call is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from torch import nn

from .arguments import EMPTY, Argument, Arguments, arguments_of, model_in
from .hints import describe, strip
from .kinds import RefusedError, check_class, resolve_kind
from .models import fields_of, holds_mappings, is_model, is_open, model_problems, needs_building
from .places import Called, Modelled, Place, Ready, Recipe, public_name
from .tree import Node, Problem, join_key, near_names, nearest
from .validate import KIND, NOTHING, Preparer


def prepare_object(preparer: Preparer, node: Node, place: Place, key: str, default: Any = None) -> Recipe:
    """The recipe for one object; a bare `kind` as text stands for a mapping with nothing else in it."""
    if isinstance(node.value, str):
        node = Node({KIND: node}, node.file, node.line)
    if not isinstance(node.value, dict):
        return preparer.add(node, key, f"is {node.shown()}; expected a mapping with `kind:` (a {place.wanted}).")
    try:
        target = _target(node, place, preparer, default)
    except RefusedError as error:
        kind = node.value.get(KIND, node)
        preparer.add(kind, join_key(key, KIND), str(error))
        _check_also(preparer, node, place, key)
        return NOTHING
    if KIND in node.value:
        preparer.kinds.append((place, node.value[KIND].value))
    return ObjectPreparer(preparer, node, place, key, target).prepare()


def _target(node: Node, place: Place, preparer: Preparer, default: Any) -> Callable[..., Any]:
    kind = node.value.get(KIND)
    if kind is not None:
        return resolve_kind(kind.value, place, preparer.folder)
    if default is not None:
        path = public_name(default)
        if default.__module__.split(".")[0] in sys.stdlib_module_names:
            raise RefusedError(f"a {path} cannot be described in a file.")
        check_class(default, path, place)
        return default  # type: ignore[no-any-return]
    if place.default is not None:
        return resolve_kind(place.default, place, preparer.folder)
    near = near_names(KIND, [str(name) for name in node.value], cutoff=0.7)
    hint = f"; is {near[0]} meant to be kind?" if near else ""
    raise RefusedError(f"is missing: name the class of the {place.name}, a {place.wanted}{hint or '.'}")


def _check_also(preparer: Preparer, node: Node, place: Place, key: str) -> None:
    """The keys that the program reads itself."""
    for name, entry in place.also.items():
        if name in node.value:
            if node.value[name].value is not None or entry.required:  # null is the same as leaving it out
                preparer.value(node.value[name], entry.accepts, join_key(key, name))
        elif entry.required:
            preparer.add(
                node, join_key(key, name), "is missing" + (f": {entry.description}" if entry.description else ".")
            )


class ObjectPreparer:
    """Checks the arguments of one object against what its class takes."""

    def __init__(self, preparer: Preparer, node: Node, place: Place, key: str, target: Callable[..., Any]) -> None:
        self.preparer, self.node, self.place, self.key, self.target = preparer, node, place, key, target
        outer = preparer.place or place
        if outer is not place and not place.given and set(place.bases) & set(outer.bases):
            self.given = set(outer.given)  # a scheduler inside a scheduler is given the same optimizer
        else:
            self.given = set(place.given)
        self.suspects: set[str] = set()  # missing keys that an unknown one was probably meant to be
        kind = node.value.get(KIND)
        self.kind = kind.value if kind is not None else getattr(target, "__qualname__", str(target))

    def prepare(self) -> Recipe:
        inner = self.preparer.place
        self.preparer.place = inner or self.place
        try:
            _check_also(self.preparer, self.node, self.place, self.key)
            if is_model(self.target):
                return self.prepare_model(self.target, self.children(), with_kind=True)
            return self.prepare_call(arguments_of(self.target))
        finally:
            self.preparer.place = inner

    def children(self) -> dict[str, Node]:
        """The keys that are arguments."""
        taken = {KIND, *self.place.also}
        return {str(name): child for name, child in self.node.value.items() if name not in taken}

    def prepare_call(self, arguments: Arguments) -> Recipe:
        children = self.children()
        model = arguments.model
        items = {name: item for name, item in arguments.items.items() if name not in self.given}
        keywords: dict[str, Recipe] = {}
        if model is not None and model.name not in children and model.name not in self.given:
            items.pop(model.name)
            found = model_in(model.hint)
            assert found is not None
            rest = {name: child for name, child in children.items() if name not in items or name in fields_of(found)}
            keywords[model.name] = self.prepare_model(found, rest, with_kind=True, others=items)
            children = {name: child for name, child in children.items() if name not in rest}
        keywords |= self.arguments(items, children, is_open=arguments.is_open)
        takes = frozenset(name for name in self.given if arguments.takes(name))
        needed = frozenset(name for name in takes if name in arguments.items and arguments.items[name].is_required)
        return self.call(arguments, keywords, takes, needed)

    def call(
        self, arguments: Arguments, keywords: dict[str, Recipe], takes: frozenset[str], needed: frozenset[str]
    ) -> Recipe:
        positional = [
            keywords.pop(name)
            for name, item in arguments.items.items()
            if item.is_positional and not item.is_variadic and name in keywords
        ]
        variadic = next((name for name, item in arguments.items.items() if item.is_variadic), None)
        rest = keywords.pop(variadic, None) if variadic is not None else None
        label = f"{self.key or self.place.name} (kind: {self.kind})"
        return Called(self.target, keywords, takes, needed, positional, rest, label)

    def arguments(
        self, items: Mapping[str, Argument], children: Mapping[str, Node], *, is_open: bool
    ) -> dict[str, Recipe]:
        """A recipe for each key, with unknown and missing ones reported."""
        recipes: dict[str, Recipe] = {}
        for name, child in children.items():
            if name in items:
                recipes[name] = self.preparer.value(child, _hint(items[name]), join_key(self.key, name))
            elif not self.is_unknown(name, child, items, children, is_open=is_open):
                recipes[name] = self.preparer.unknown(child, join_key(self.key, name))
        for name, item in items.items():
            if item.is_required and name not in children and name not in self.suspects:
                message = f"is missing: {self.kind} takes it, {describe(item.hint)}, and it has no default."
                self.preparer.add(self.node, join_key(self.key, name), message)
        return recipes

    def is_unknown(
        self, name: str, child: Node, known: Iterable[str], present: Iterable[str], *, is_open: bool
    ) -> bool:
        """Report a key that is not an argument; where anything is accepted, one that looks like a misspelt argument."""
        absent = [
            other for other in [*known, *self.place.also] if other not in present and other not in self.node.value
        ]
        if name in self.given:
            self.preparer.add(child, join_key(self.key, name), "is supplied by the program: leave it out.")
            return True
        near = near_names(name, absent, cutoff=0.8 if is_open else 0.6)
        if is_open and not near:
            return False
        self.suspects |= set(near)
        hint = nearest(name, absent if near else [*known, *self.place.also])
        what = f"unknown key; {self.kind} takes no such argument"
        self.preparer.add(child, join_key(self.key, name), f"{what}; {hint}" if not is_open else f"unknown key; {hint}")
        return True

    def prepare_model(
        self, model: Any, children: Mapping[str, Node], *, with_kind: bool, others: Iterable[str] = ()
    ) -> Recipe:
        """The fields of a pydantic model; those that pydantic can read itself are left to it."""
        known = fields_of(model)
        recipes: dict[str, Recipe] = {}
        wrong: set[str] = set()  # fields with mistakes that were found here, of which pydantic need not speak again
        for name, child in children.items():
            path = join_key(self.key, name)
            if name not in known:
                names = [*known, *others]
                if not self.is_unknown(name, child, names, children, is_open=is_open(model)):
                    recipes[name] = Ready(child.plain())
                continue
            before, recipes[name] = len(self.preparer.problems), Ready(child.plain())
            if needs_building(known[name].hint):
                recipes[name] = self.preparer.value(child, _hint(known[name]), path)
            elif holds_mappings(known[name].hint):
                self.preparer.value(child, _hint(known[name]), path)
            if len(self.preparer.problems) > before:
                wrong.add(path)
        if with_kind and KIND in known and KIND in self.node.value:
            recipes[KIND] = Ready(self.node.value[KIND].value)
        for node, key, message in model_problems(model, recipes, self.node, self.key):
            name = key.removeprefix(f"{self.key}.") if self.key else key
            is_said = any(key == path or key.startswith(f"{path}.") for path in wrong)
            if name not in self.suspects and not is_said and not ((wrong or self.suspects) and key == self.key):
                self.preparer.add(node, key, message)
        return Modelled(model, recipes, Problem(self.node.file, self.node.line, self.key, ""))


def _hint(item: Argument) -> Any:
    """What an argument accepts: also null where that is its default, whatever its annotation says."""
    hint = Any if item.hint is EMPTY else item.hint
    plain, place = strip(hint)
    if plain is Any and place is None and isinstance(item.default, nn.Module):
        return nn.Module  # an argument without annotation whose default is a layer takes layers
    if item.default is None and (place is not None or plain is not Any):
        return Optional[hint]  # noqa: UP045 - a hint may be a string that `|` does not take
    return hint
