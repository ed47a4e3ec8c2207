"""The batches of torch's `default_collate`, with less work where samples consist of plain tensors.

A column of tensors is stacked as torch does it; every other kind of column is left to torch. In a
worker torch stacks into shared memory, whose set-up costs more than a small batch: up to
`MAX_BY_VALUE` bytes the batch is built in the worker's own memory, and `data/workers.py` sends it
by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from .stream import MAX_BY_VALUE


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
    try:
        return default_collate(samples)
    except TypeError as error:
        if kind.__module__.partition(".")[0] not in ("torch", "numpy"):
            error.add_note(
                f"The data set returned a sample with a value of type {kind.__name__}: let it "
                "return tensors or numbers (for images use a transform such as torchvision's "
                "`ToTensor()`), or pass a DataLoader with a `collate_fn`."
            )
        raise


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
    try:
        return torch.stack(tensors)
    except RuntimeError as error:
        if any(tensor.shape != first.shape for tensor in tensors):
            error.add_note(
                "Samples of one batch have different shapes: crop or pad them in the data set, or "
                "pass a DataLoader with a `collate_fn` that pads them."
            )
        raise
