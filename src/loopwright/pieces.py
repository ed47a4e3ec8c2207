"""Batches cut into pieces along their first dimension, and outputs of pieces put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .supervised import describe


def split(batch: Any, size: int, num_pieces: int) -> list[tuple[Any, int]]:
    """The batch of `size` samples in at most that many pieces, as even as possible, each with its size."""
    num_pieces = min(num_pieces, size)
    if num_pieces <= 1:
        return [(batch, size)]
    if (reason := why_whole(batch, size)) is not None:
        raise DataError(
            f"A batch has to be taken in pieces, since memory ran out before, and cannot be: {reason}. Use smaller "
            "batches (with `accumulate=` for the same effect)."
        )
    lengths = [size // num_pieces + (number < size % num_pieces) for number in range(num_pieces)]
    ends = list(accumulate(lengths))
    return [(_cut(batch, size, end - n, end), n) for end, n in zip(ends, lengths, strict=True)]


def why_whole(batch: Any, size: int) -> str | None:
    """What keeps a batch from being cut by samples, or None: every tensor in it must have one row for each."""
    found = False
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim:
            found = True
            if leaf.shape[0] != size:
                return f"it is {describe(batch)}, where not everything has one row for each of its {size} samples"
        elif not isinstance(leaf, Tensor | np.ndarray | int | float | str | bytes | None):
            return f"it holds a {type(leaf).__name__}"
    return None if found else f"{describe(batch)} holds no tensor"


def join(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Outputs of pieces as those of the whole, without graphs: rows one after another, single numbers averaged.

    What cannot be joined is given as the list of its parts.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return _join_tensors([part.detach() for part in parts], sizes)
    if isinstance(first, Mapping):
        joined = {key: join([part[key] for part in parts], sizes) for key in first}
        return joined if type(first) is dict else cast(Any, type(first))(joined)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join(column, sizes) for column in zip(*parts, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(join(column, sizes) for column in zip(*parts, strict=True))
    return first if len(parts) == 1 or first is None else list(parts)


def _join_tensors(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].ndim:
        return torch.cat(list(parts))
    total = sum(sizes)
    return torch.stack([part * (size / total) for part, size in zip(parts, sizes, strict=True)]).sum()


def _cut(value: Any, size: int, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of everything that has rows; containers keep their type."""
    if isinstance(value, Tensor | np.ndarray):
        return value[start:stop] if value.ndim else value
    if isinstance(value, Mapping):
        cut = {key: _cut(item, size, start, stop) for key, item in value.items()}
        return cut if type(value) is dict else cast(Any, type(value))(cut)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cut(item, size, start, stop) for item in value))
    if isinstance(value, list | tuple):
        if _is_column(value) and len(value) == size:  # texts, names of files: one for each sample
            return value[start:stop]
        return type(value)(_cut(item, size, start, stop) for item in value)
    return value


def _is_column(value: Sequence[Any]) -> bool:
    return not any(isinstance(item, Tensor | np.ndarray | Mapping | list | tuple) for item in value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
