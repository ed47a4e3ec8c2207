"""The batches of torch's `default_collate`, with less work where samples consist of plain tensors.

A column of tensors is stacked as torch does it; every other kind of column is left to torch. In a worker torch stacks
into shared memory, whose set-up costs more than a small batch: up to `MAX_BY_VALUE` bytes the batch is built in the
worker's own memory, and `data/workers.py` sends it by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

MAX_BY_VALUE = 1 << 19  # bytes: at 1 MB shared memory is as fast, at 3 MB twice as fast


def collate_samples(samples: Sequence[Any]) -> Any:
    """Return what `default_collate` returns."""
    first = samples[0]
    kind = type(first)
    if kind is Tensor:
        return _stack(samples, first)
    if kind is tuple or kind is list:
        if set(map(len, samples)) == {len(first)}:
            return [collate_samples(column) for column in zip(*samples, strict=False)]
    elif kind is dict:
        return {key: collate_samples([sample[key] for sample in samples]) for key in first}
    return default_collate(samples)  # type: ignore[arg-type]  # any sequence


def _stack(tensors: Any, first: Tensor) -> Any:
    if first.is_nested or first.layout is not torch.strided:
        return default_collate(tensors)  # which says that it cannot
    if get_worker_info() is not None and (first.requires_grad or len(tensors) * first.nbytes > MAX_BY_VALUE):
        return default_collate(tensors)
    return torch.stack(tensors)
