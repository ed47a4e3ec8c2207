"""Batches of rows of tensors in memory: by index, or consecutive ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .sharding import Shard
from .stream import Batch


def rows(
    tensors: tuple[Tensor, ...],
    order: Tensor,
    span: tuple[int, int],
    batch_size: int,
    shard: Shard | None,
) -> Iterator[Batch]:
    """Yield the batches of some rows of tensors, selected by index."""
    select = [tensor.index_select for tensor in tensors]
    if shard is not None:
        yield from selections(
            lambda indices: [of(0, indices) for of in select], order, span, batch_size, shard
        )
        return
    for indices in _split(order, span, batch_size):
        yield Batch([of(0, indices) for of in select], indices.shape[0])


def selections(
    select: Callable[[Tensor], Any],
    order: Tensor,
    span: tuple[int, int],
    batch_size: int,
    shard: Shard | None,
) -> Iterator[Batch]:
    """Yield the batches that `select` returns for the indices of each."""
    for indices in _split(order, span, batch_size):
        if shard is None:
            yield Batch(select(indices), indices.shape[0])
        else:
            total = indices.shape[0]
            first, last = shard.part(0, total)
            yield Batch(select(indices[first:last]), shard.size(total), total)


def copies(
    tensors: tuple[Tensor, ...], span: tuple[int, int], batch_size: int, shard: Shard | None
) -> Iterator[Batch]:
    """Yield the batches of consecutive rows of tensors, as copies."""
    parts = [_split(tensor, span, batch_size) for tensor in tensors]
    for views in zip(*parts, strict=True):  # views of the data set's memory: batches are copies
        if shard is None:
            yield Batch([view.clone() for view in views], views[0].shape[0])
        else:
            total = views[0].shape[0]
            first, last = shard.part(0, total)
            yield Batch([view[first:last].clone() for view in views], shard.size(total), total)


def _split(tensor: Tensor, span: tuple[int, int], size: int) -> tuple[Tensor, ...]:
    views: tuple[Tensor, ...] = tensor[span[0] : span[1]].split(size)  # type: ignore[no-untyped-call]
    return views
