"""Batches selected from whole columns, with the values of fetching and collating samples.

A column is a tensor, an array or a list, alone or inside torch's containers. Only exact types
count: a subclass may have its own `__getitem__`, and takes the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate, get_worker_info

from .columns import (
    NamedColumns,
    as_tensor,
    is_mapped_array,
    is_plain_tensor,
    not_negative,
    stacked,
)
from .stream import MAX_BY_VALUE

Select = Callable[[Tensor], Any]


class SelectedColumns(NamedTuple):
    """Selects batches by indices of 0 or more."""

    select: Select
    length: int
    has_lists: bool = False  # whose entries may be anything


def columns_of(dataset: Any) -> SelectedColumns | None:
    """Return the columns of a data set; None where samples have to be fetched one by one."""
    build = _KINDS.get(type(dataset))
    return None if build is None else build(dataset)


def is_mapped(dataset: Any) -> bool:
    """Whether a data set, or a part of it, is an array in a memory-mapped file."""
    if isinstance(dataset, np.ndarray):
        return is_mapped_array(dataset)
    if isinstance(dataset, Subset):
        return is_mapped(dataset.dataset)
    return isinstance(dataset, StackDataset) and any(map(is_mapped, stacked(dataset)))


def _of_tensor(tensor: Tensor) -> SelectedColumns | None:
    if tensor.dim() == 0 or not is_plain_tensor(tensor) or not tensor.is_cpu:
        return None
    select = tensor.index_select
    return SelectedColumns(lambda indices: select(0, indices), len(tensor))


def _of_array(array: np.ndarray[Any, Any]) -> SelectedColumns | None:
    if array.ndim == 0 or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        return None
    try:
        return _of_tensor(as_tensor(array))
    except TypeError:  # a type that torch does not know
        return None


def _of_list(samples: list[Any], kind: Callable[[Iterable[Any]], Any] = list) -> SelectedColumns:
    """Return the column of a list; `kind` is the type in which torch hands on a column, and keeps
    one of strings."""
    return SelectedColumns(
        lambda indices: collate_samples(kind(samples[n] for n in indices.tolist())),
        len(samples),
        has_lists=True,
    )


def _of_parts(
    parts: Sequence[Any], kind: Callable[[Iterable[Any]], Any] = tuple
) -> SelectedColumns | None:
    columns = [_of_list(part, kind) if type(part) is list else columns_of(part) for part in parts]
    known = [column for column in columns if column is not None]
    if not columns or len(known) < len(columns):
        return None
    selects = [column.select for column in known]
    return SelectedColumns(
        lambda indices: [select(indices) for select in selects],
        known[0].length,
        any(column.has_lists for column in known),
    )


def _of_named(parts: dict[str, Any]) -> SelectedColumns | None:
    columns = _of_parts(list(parts.values()), list)
    if columns is None:
        return None
    select = columns.select
    return columns._replace(select=lambda indices: dict(zip(parts, select(indices), strict=True)))


def _of_stack(dataset: StackDataset[Any]) -> SelectedColumns | None:
    datasets: Any = dataset.datasets
    return _of_named(datasets) if isinstance(datasets, dict) else _of_parts(datasets)


def _of_subset(dataset: Subset[Any]) -> SelectedColumns | None:
    whole: Any = dataset.dataset
    inner = columns_of(whole)
    if inner is None or type(whole) is list:
        return None
    every = not_negative(dataset.indices, inner.length)
    return SelectedColumns(
        lambda indices: inner.select(every[indices]), len(every), inner.has_lists
    )


_KINDS: dict[type, Callable[[Any], SelectedColumns | None]] = {
    Tensor: _of_tensor,
    np.ndarray: _of_array,
    np.memmap: _of_array,
    list: _of_list,
    TensorDataset: lambda dataset: _of_parts(dataset.tensors),
    NamedColumns: lambda dataset: _of_named(dataset.columns),
    StackDataset: _of_stack,
    Subset: _of_subset,
}


def collate_samples(samples: Any) -> Any:
    """Return what `default_collate` returns; whole columns, in a mapping, are a batch already."""
    if type(samples) not in (list, tuple) and isinstance(samples, Mapping):
        return {name: _column(column) for name, column in samples.items()}
    first = samples[0]
    kind = type(first)
    if kind is Tensor:
        return _stack(samples, first)
    if kind is tuple or kind is list:
        if set(map(len, samples)) == {len(first)}:
            return [collate_samples(column) for column in zip(*samples, strict=False)]
    elif kind is dict:
        return {key: collate_samples([sample[key] for sample in samples]) for key in first}
    return default_collate(samples)


def _column(column: Any) -> Any:
    """Return the column of a batch, as a copy: its samples may be in the memory of the data set."""
    if isinstance(column, Tensor):
        return column.clone()
    if isinstance(column, np.ndarray) and column.dtype.kind in "biufc":
        return torch.from_numpy(np.array(column))
    return collate_samples(list(column))


def _stack(tensors: Any, first: Tensor) -> Any:
    if first.is_nested or first.layout is not torch.strided:
        return default_collate(tensors)  # which says that it cannot
    if get_worker_info() is not None and (
        first.requires_grad or len(tensors) * first.nbytes > MAX_BY_VALUE
    ):
        return default_collate(tensors)
    return torch.stack(tensors)
