"""Objects from what a config says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .importing import beside
from .places import Place
from .preparing import Preparer
from .problems import ConfigError
from .tree import Config, Node, to_node

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
