"""The keys of a run file, and their JSON schema (draft 2020-12), with which editors complete and
check it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .arguments import EMPTY, Argument, arguments_of, fields_of, is_model, is_open, model_in
from .compose import DEFAULTS, Config
from .hints import json_of
from .kinds import (
    ANYTHING,
    KIND,
    Entry,
    Place,
    Schema,
    beside,
    fits,
    is_accepted,
    mapping_of,
    one_of_kind,
    resolve_kind,
    short_names,
)
from .validate import ConfigValidation

ARGUMENT = re.compile(
    r"^\s{0,12}(\w+)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:[ \t]+(\S.*)$", re.M
)
DATA: Any = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
VARIABLE = {"$ref": "#/$defs/variable"}
Json = dict[str, Any]


def first_sentence(target: Any) -> str:
    """The first line of a docstring that the class has itself."""
    own = (
        vars(target).get("__doc__")
        if isinstance(target, type)
        else getattr(target, "__doc__", None)
    )
    text = inspect.cleandoc(own).strip() if isinstance(own, str) else ""
    return text.partition("\n\n")[0].replace("\n", " ")[:300]


def described_arguments(target: Any) -> dict[str, str]:
    """Lines of the form `name: what it is` or `name (type): what it is`."""
    init = getattr(target, "__init__", None)
    texts = [getattr(target, "__doc__", None), getattr(init, "__doc__", None)]
    found: dict[str, str] = {}
    for text in texts:
        for name, words in (
            ARGUMENT.findall(inspect.cleandoc(text)) if isinstance(text, str) else ()
        ):
            found.setdefault(name, words.strip()[:300])
    return found


def json_schema(schema: Schema, config: Config | None = None) -> Json:
    """The JSON schema of a file, with which editors complete and check it.

    Args:
        schema: the keys of the file.
        config: a config whose kinds are described too, besides the kinds that ship.

    >>> from loopwright.config import Entry, Schema, json_schema
    >>> json_schema(Schema({"seed": Entry(str, description="Any text.")}))["properties"]
    {'seed': {'description': 'Any text.', 'type': 'string'}}
    """
    folder: Path | None = None
    kinds: list[tuple[Place, str]] = []
    if config is not None:
        validation = ConfigValidation(config.folder)
        validation.check(config.root, schema, config.key)
        folder = config.folder
        kinds = validation.kinds
    with beside(folder):
        return SchemaWriter(folder, kinds).write(schema)


class SchemaWriter:
    """Writes hints and places as JSON schema; what is used more than once goes to `$defs`."""

    def __init__(self, folder: Path | None, kinds: Iterable[tuple[Place, str]]) -> None:
        self.folder = folder
        self.kinds = list(kinds)
        self.defs: dict[str, Json] = {
            "variable": {
                "type": "string",
                "pattern": r"\$\{",
                "description": "A variable: ${key} or ${env:NAME}.",
            }
        }
        self.names: dict[Any, str] = {}
        # being written; an object inside one of the same kind has the same `given`
        self.outer: list[Place] = []

    def write(self, schema: Schema) -> Json:
        body = self.mapping(schema.entries)
        # which a file that includes others may leave to them
        required = {"required": body.pop("required")}
        whole = (
            {"if": {"required": [DEFAULTS]}, "else": required}
            if DEFAULTS in schema.entries
            else required
        )
        return {
            "$schema": DIALECT,
            "title": schema.description or "Config",
            **body,
            **whole,
            "$defs": self.defs,
        }

    def mapping(self, entries: Mapping[str, Entry]) -> Json:
        properties = {name: self.entry(entry) for name, entry in entries.items()}
        required = [name for name, entry in entries.items() if entry.required]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def entry(self, entry: Entry) -> Json:
        found = self.hint(entry.accepts)
        return {"description": entry.description, **found} if entry.description else found

    def hint(self, hint: Any) -> Json:
        """What a hint accepts: pydantic's schema of it, with the objects in it described and
        variables allowed."""
        return self.completed(json_of(hint))

    def completed(self, json: Json) -> Json:
        if "place" in json:
            return self.place(json["place"])
        if "schema" in json:
            return self.mapping(json["schema"].entries)
        if "object" in json:
            return self.object(json["object"])
        if "anyOf" in json:
            return any_of(map(self.completed, json["anyOf"]))
        body = {name: value for name, value in json.items() if name != "words"}
        for name in ("items", "additionalProperties"):
            if isinstance(body.get(name), dict):
                body[name] = self.completed(body[name])
        if "prefixItems" in body:
            body["prefixItems"] = [self.completed(part) for part in body["prefixItems"]]
        return body if not body or body.get("type") == "string" else any_of([body, VARIABLE])

    def object(self, found: type) -> Json:
        """An object of a class that a hint names."""
        if fits(found, ANYTHING):
            outer = next(
                (place for place in self.outer if place.given and found in place.bases), None
            )
            return self.place(outer or Place(found.__name__, found))
        return any_of([self.described(found, (), {}), VARIABLE])

    def place(self, place: Place) -> Json:
        """A reference to what a place accepts: the kinds that ship with their arguments, and any
        other by its path."""
        known = place if place.short is not None or place.also or place.given else place.bases
        if known in self.names:
            return {"$ref": f"#/$defs/{self.names[known]}"}
        name = place.name
        while name in self.defs:
            name += "_"
        self.names[known] = name
        self.defs[name] = {}  # so that a place inside its own arguments refers to it
        self.outer.append(place)
        known_names = short_names(place)
        used = [kind for other, kind in self.kinds if other is place]
        kinds = [
            kind
            for kind in dict.fromkeys([*known_names, *used])
            if is_accepted(kind, place, self.folder)
        ]
        short = [kind for kind in kinds if "." not in kind]
        paths = {
            "type": "string",
            "pattern": r"^\w+(\.\w+)+$",
            "description": f"The import path of a {place.wanted}.",
        }
        choices = {"anyOf": [{"enum": short}, paths]} if short else paths
        body: Json = {"type": "object", "properties": {KIND: choices, **self.common(place)}}
        if place.default is None:
            body["required"] = [KIND]
        cases = [
            self.case(kind, place)
            for kind in kinds
            # layers of torch are listed by name only: their arguments would be most of the file
            if not known_names.get(kind, kind).startswith("torch.nn.")
        ]
        if cases:
            body["allOf"] = cases
        self.outer.pop()
        self.defs[name] = {
            "description": place.description or f"A {place.wanted}.",
            "anyOf": [body, choices, VARIABLE],
        }
        one = {"$ref": f"#/$defs/{name}"}
        if not place.several:
            return one
        named = {
            "type": "object",
            "not": {"required": [KIND]},
            "minProperties": 1,
            "additionalProperties": one,
        }
        return {"anyOf": [one, named]}

    def common(self, place: Place) -> Json:
        """The keys that any kind takes in this place: keys of the program, and arguments of the
        needed class."""
        properties = {name: self.entry(entry) for name, entry in place.also.items()}
        base = place.bases[0]
        if base in ANYTHING or getattr(base, "_is_protocol", False):
            return properties
        return {**self.properties(base, place.given)[0], **properties}

    def case(self, kind: str, place: Place) -> Json:
        """The arguments of one kind, for a node that names it by its short name or its path."""
        path = short_names(place).get(kind, kind)
        names = [kind] if kind == path else [kind, path]
        condition = {"properties": {KIND: {"enum": names}}, "required": [KIND]}
        name = f"kind.{path}"
        if name not in self.defs:
            self.defs[name] = {}
            target = resolve_kind(kind, place, self.folder)
            self.defs[name] = self.described(
                target, place.given, {KIND: True, **dict.fromkeys(place.also, True)}
            )
        return {"if": condition, "then": {"$ref": f"#/$defs/{name}"}}

    def described(self, target: Callable[..., Any], given: Iterable[str], more: Json) -> Json:
        """An object with the arguments of a class as its keys."""
        properties, required, is_open = self.properties(target, given)
        body: Json = {"type": "object", "properties": {**more, **properties}, "required": required}
        if not is_open:
            body["additionalProperties"] = False
        words = first_sentence(target)
        return {"description": words, **body} if words else body

    def properties(self, target: Any, given: Iterable[str]) -> tuple[Json, list[str], bool]:
        """The keys of a class, its required keys, and whether it takes others."""
        arguments = arguments_of(target)
        items = {name: item for name, item in arguments.items.items() if name not in given}
        words = described_arguments(target)
        model: Any = target if is_model(target) else None
        if model is not None:
            items = fields_of(model)
        elif arguments.model is not None:
            model = model_in(arguments.items[arguments.model].hint)
            items.pop(arguments.model, None)
            items |= fields_of(model)
        if model is not None:
            about = {
                name: info.description
                for name, info in model.model_fields.items()
                if info.description
            }
            words = {**described_arguments(model), **about}
        required = [name for name, item in items.items() if item.is_required and name != KIND]
        found = {
            name: self.argument(item, words.get(name, ""))
            for name, item in items.items()
            if name != KIND
        }
        return found, required, arguments.is_open if model is None else is_open(model)

    def argument(self, item: Argument, words: str) -> Json:
        body = self.hint(item.hint)
        extra: Json = {"description": words} if words else {}
        if item.default is not EMPTY and type(item.default) in (int, float, bool, str, type(None)):
            extra["default"] = item.default
        return {**body, **extra}


def any_of(options: Iterable[Json]) -> Json:
    """Any of the options, without duplicates and nested `anyOf`s."""
    flat: list[Json] = []
    for option in options:
        for part in option["anyOf"] if set(option) == {"anyOf"} else [option]:
            if part not in flat:
                flat.append(part)
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def run_schema(
    *,
    model: Place,
    dataset: Place,
    trainer: Place,
    optimizer: Place | None = None,
    scheduler: Place | None = None,
    initializer: Place | None = None,
) -> Schema:
    """The schema of a run file; a key without a place is not accepted.

    Args:
        model: what the model must be; the other places likewise.
        dataset: the place of each data set under `datasets`.
        trainer: the trainer, whose settings are the keys beside its `kind`.
        optimizer: of a single optimizer at the top of the file.
        scheduler: of a single scheduler at the top of the file.
        initializer: of what loads weights before training.

    >>> from torch import nn
    >>> from torch.utils.data import Dataset
    >>> from loopwright import Trainer
    >>> from loopwright.config import Place, run_schema
    >>> schema = run_schema(model=Place("model", nn.Module), dataset=Place("dataset", Dataset),
    ...                     trainer=Place("trainer", Trainer))
    >>> [name for name, entry in schema.entries.items() if entry.required]
    ['model', 'datasets', 'trainer']
    """
    texts = {
        "name": (str | None, "The name of the run; its directory is `runs/<name>/<id>`."),
        "seed": (int | None, "The seed of all randomness: 0 is a seed, null is none."),
        "output_path": (Path | None, "The run directory. Default: a new one in `runs/<name>`."),
        "tags": (list[str], "Words to find the run by."),
        "resume": (
            bool | str | None,
            "true or auto to continue, false to start anew, or the path of a run.",
        ),
        "vars": (DATA, "Values to use elsewhere in the file as `${vars.name}`."),
        "defaults": (list[Any] | str, "Files to include; this file's keys win over theirs."),
        "modules": (str, "The folder of your modules: that of the file, or one above it."),
        "sweep": (DATA, "Keys with lists of values, one run for each combination."),
    }
    entries = {name: Entry(accepts, description=text) for name, (accepts, text) in texts.items()}
    needed = {
        "model": (one_of_kind(model), model.description or "The model that is trained."),
        "datasets": (
            mapping_of(dataset),
            dataset.description or "Data sets by name, such as train and test.",
        ),
        "trainer": (one_of_kind(trainer), trainer.description or "The trainer and its settings."),
    }
    entries |= {name: Entry(accepts, True, text) for name, (accepts, text) in needed.items()}
    optional = {"optimizer": optimizer, "scheduler": scheduler, "initializer": initializer}
    for name, place in optional.items():
        if place is not None:
            text = place.description or f"The {name}."
            entries[name] = Entry(one_of_kind(place), description=text)
    return Schema(entries, "A training run.")
