"""Nested containers of any values: their leaves, with or without paths, and the same as JSON.

`data/containers.py` has the same for the tensors of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, cast


def leaves(tree: Any) -> list[Any]:
    """Return the values in nested mappings, lists and tuples.

    >>> leaves({"a": [1, 2], "b": (3,)})
    [1, 2, 3]
    """
    found: list[Any] = []
    left = [tree]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(reversed(list(value.values())))
        elif isinstance(value, list | tuple):
            left.extend(reversed(value))
        else:
            found.append(value)
    return found


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


def map_leaves(
    function: Callable[..., Any],
    tree: Any,
    *others: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """The same containers with a function applied to each value in them.

    With `others` of the same form, the function gets the values of all of them. Containers for
    which `is_leaf` is true are values.

    >>> map_leaves(str, {"a": [1, (2, None)]})
    {'a': ['1', ('2', 'None')]}
    >>> map_leaves(max, [1, 5], [2, 3])
    [2, 5]
    """
    if is_leaf is not None and is_leaf(tree):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        mapped = {
            key: map_leaves(function, item, *(other[key] for other in others), is_leaf=is_leaf)
            for key, item in tree.items()
        }
        return mapped if type(tree) is dict else cast(Any, type(tree))(mapped)
    if isinstance(tree, list | tuple):
        columns = zip(tree, *others, strict=True)
        items = [map_leaves(function, *column, is_leaf=is_leaf) for column in columns]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return function(tree, *others)


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
