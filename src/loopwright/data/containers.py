"""The tensors in nested containers, such as a batch: find them, or replace each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the tensors in nested containers, which keep their types.

    Other values are passed through.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        mapped = {key: map_tensors(function, item) for key, item in value.items()}
        return mapped if type(value) is dict else cast(Any, type(value))(mapped)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, item) for item in value)
    return value
