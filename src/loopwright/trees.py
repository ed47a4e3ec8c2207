"""Nested containers of any values: their leaves, with or without paths, and the same as JSON.

`data/containers.py` has the same for the tensors of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, cast


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the values in nested mappings, lists and tuples.

    >>> list(leaves({"a": [1, 2], "b": (3,)}))
    [1, 2, 3]
    """
    if isinstance(tree, Mapping):
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings, lists and tuples with their paths; empty ones too.

    >>> list(named_leaves({"a": [1, 2], "b": {}}))
    [('a.0', 1), ('a.1', 2), ('b', {})]
    """
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, Mapping):
        entries = tree.items()
    elif isinstance(tree, list | tuple):
        entries = enumerate(tree)
    if not entries or not tree:
        yield path, tree
        return
    for name, item in entries:
        yield from named_leaves(item, f"{path}.{name}" if path else str(name))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with a function applied to each value in them.

    >>> map_leaves(str, {"a": [1, (2, None)]})
    {'a': ['1', ('2', 'None')]}
    """
    if isinstance(tree, Mapping):
        mapped = {key: map_leaves(function, item) for key, item in tree.items()}
        return mapped if type(tree) is dict else cast(Any, type(tree))(mapped)
    if isinstance(tree, list | tuple):
        items = [map_leaves(function, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return function(tree)


def as_json(value: Any, *, nonfinite: Literal["text", "null"] = "text") -> Any:
    """A value as JSON can hold it: numbers, texts, lists and dicts; anything else as its text.

    >>> as_json({"rate": float("nan"), 3: (1, {2})})
    {'rate': 'nan', '3': [1, [2]]}
    """
    if isinstance(value, Mapping):
        return {str(key): as_json(item, nonfinite=nonfinite) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, nonfinite=nonfinite) for item in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of numpy, or a tensor
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if nonfinite == "text" else None
    if value is None or type(value) in (str, int, bool, float):
        return value
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else str(value)
