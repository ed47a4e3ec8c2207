"""Samples to batches: every sample is fetched with the generators seeded from (seed, epoch, index).

The same object fetches in this process and, pickled or forked, in workers, so that where a batch is made does
not change it. A data set that defines `__getitems__` is asked for whole batches, which are seeded from their
first index.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from operator import index as as_int
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    ConcatDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from .interface import Batch, batch_size_of
from .order import COLLATE, SAMPLE, derive_seed
from .seeding import preserved_rng, seed_sample

Collate = Callable[[Any], Any]


class Request(NamedTuple):
    """Which samples of which epoch; the epoch travels along because workers may outlive it."""

    epoch: int
    indices: list[Any]


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Makes the batch for a request. `single` means that one index is one whole batch."""

    dataset: Any
    collate: Collate
    seed: int
    single: bool = False

    def __getitem__(self, request: Request) -> Batch:
        with self._undisturbed():
            samples = self._samples(request)
            if self._is_random_collate():
                seed_sample(self._seed(request, COLLATE))
            value = self.collate(samples)
        return Batch(value, self._size(request, value))

    def _samples(self, request: Request) -> Any:
        if self.single:
            return self._sample(request, request.indices[0])
        if fetches_batches(self.dataset):
            seed_sample(self._seed(request, SAMPLE))
            return self.dataset.__getitems__(request.indices)
        if draws_nothing(self.dataset):
            return [self.dataset[index] for index in request.indices]
        return [self._sample(request, index) for index in request.indices]

    def _sample(self, request: Request, index: Any) -> Any:
        if not draws_nothing(self.dataset):
            seed_sample(derive_seed(self.seed, request.epoch, SAMPLE, _number(index)))
        return self.dataset[index]

    def _seed(self, request: Request, purpose: int) -> int:
        return derive_seed(self.seed, request.epoch, purpose, _number(request.indices[0]))

    def _size(self, request: Request, value: Any) -> int:
        if not self.single:
            return len(request.indices)
        index = request.indices[0]
        return len(index) if isinstance(index, list | tuple) else batch_size_of(value)

    def _is_random_collate(self) -> bool:
        return self.collate is not default_collate and self.collate is not default_convert

    def _undisturbed(self) -> AbstractContextManager[None]:
        if get_worker_info() is not None or (draws_nothing(self.dataset) and not self._is_random_collate()):
            return nullcontext()
        return preserved_rng()


def draws_nothing(dataset: Any) -> bool:
    """Whether a data set is known to use no random numbers, so that seeding it would be for nothing."""
    kind = type(dataset)
    if kind is Subset:
        return draws_nothing(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(draws_nothing, dataset.datasets))
    if kind is StackDataset:
        return all(map(draws_nothing, _stacked(dataset)))
    return kind in (TensorDataset, list, tuple, range)


def fetches_batches(dataset: Any) -> bool:
    """Whether a data set fetches whole batches by a method of its own.

    torch's containers define `__getitems__` for everybody; what counts is the data set inside.
    """
    method = getattr(type(dataset), "__getitems__", None)
    if method is Subset.__getitems__:
        return fetches_batches(dataset.dataset)
    if method is StackDataset.__getitems__:
        return any(map(fetches_batches, _stacked(dataset)))
    return callable(method)


def pin(value: Any) -> Any:
    """Copy the tensors of a batch into pinned memory, as a loader does it."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)  # type: ignore[no-untyped-call]


def can_pin() -> bool:
    """Whether pinning memory means anything on this machine."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"


def _stacked(dataset: Any) -> list[Any]:
    datasets = dataset.datasets
    return list(datasets.values() if isinstance(datasets, dict) else datasets)


def _number(index: Any) -> int:
    try:
        return as_int(index)
    except TypeError:  # a key or a tuple: anything that prints the same is the same sample
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest())
