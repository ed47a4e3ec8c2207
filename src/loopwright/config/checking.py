"""Everything that is wrong with a config, found before anything is built."""

from __future__ import annotations

from .importing import beside
from .places import Schema
from .preparing import Preparer
from .problems import Problem
from .tree import Config


def check(config: Config, schema: Schema) -> list[Problem]:
    """Unknown keys, wrong types, missing arguments and kinds that cannot be used; nothing is built.

    Modules that a `kind` names are imported, by the rules of `importing`; no class is called, except pydantic models,
    which check their own fields. An empty list is a config that can be built: raise `ConfigError(problems)` otherwise.
    """
    preparer = Preparer(config.folder)
    with beside(config.folder):
        preparer.value(config.root, schema, config.key)
    return list(dict.fromkeys(preparer.problems))
