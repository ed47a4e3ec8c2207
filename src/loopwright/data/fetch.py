"""Samples to batches: every sample is fetched with the generators it draws from seeded by (seed, epoch, index).

The same object fetches in this process and, pickled or forked, in workers, so that where a batch is made does
not change it. A data set that defines `__getitems__` is asked for whole batches as long as it draws nothing, and then
for one sample at a time, so that a sample does not depend on those it is fetched with. What only exists as a batch, a
collate function and a `__getitems__` that does not return a list of samples, is seeded from the batch's first index.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sized
from hashlib import blake2b
from operator import index as as_int
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from .._torch_compat import pin_memory
from .order import COLLATE, SAMPLE, derive_seed
from .random import Draws, numpy_random
from .stream import Batch, batch_size_of

Collate = Callable[[Any], Any]


class Request(NamedTuple):
    """Which samples of which epoch; the epoch travels along because workers may outlive it."""

    epoch: int
    indices: list[Any]


class Fetcher:
    """Makes the batch for a request. `single` means that one index is one whole batch."""

    def __init__(self, dataset: Any, collate: Collate, seed: int, single: bool = False) -> None:
        self.dataset = dataset
        self.seed = seed
        self._collate = collate
        self._single = single
        self._by_batch = not single and fetches_batches(dataset)
        self._is_random = not draws_nothing(dataset)
        self._is_random_collate = collate is not default_collate and collate is not default_convert
        self._draws, self._collate_draws = Draws(), Draws()
        self._can_split = True  # until `__getitems__` turns out to return something else than a list of samples

    def describe(self) -> dict[str, Any]:
        """Its length, where it has one, and how samples become a batch where that is not as torch does it."""
        length = len(self.dataset) if isinstance(self.dataset, Sized) else None
        return {"length": length} | ({"collate": self._collate} if self._is_random_collate else {})

    def apart(self, dataset: Any) -> Fetcher:
        """One of its own over another data set, for a look at samples, which is the same whatever the run's seed."""
        return Fetcher(dataset, self._collate, 0, self._single)

    def sample(self, index: Any) -> Any:
        """One sample as the first epoch has it, before it is collated."""
        return self._draws.make(lambda: self._fetch(Request(0, [index])))

    def __getitem__(self, request: Request) -> Batch:
        if self._is_random_collate:
            value = self._collate_draws.make(lambda: self._build(request))
        else:
            value = self._build(request)
        return Batch(value, self._size_of(value, request))

    def _build(self, request: Request) -> Any:
        """What the collate function makes of samples; they are fetched with it, since it may change them."""
        samples = self._draws.make(lambda: self._fetch(request)) if self._is_random else self._fetch(request)
        if self._collate_draws:
            self._collate_draws.seed(self._seed_of(request.epoch, COLLATE, request.indices[0]))
        return self._collate(samples)

    def _fetch(self, request: Request) -> Any:
        if self._by_batch:
            return self._fetch_together(request)
        if self._is_random and self._draws:
            samples = [self._sample(request.epoch, index) for index in request.indices]
        else:
            samples = [self.dataset[index] for index in request.indices]
        return samples[0] if self._single else samples

    def _fetch_together(self, request: Request) -> Any:
        if self._draws and self._can_split:
            parts = [self._getitems(request.epoch, [index]) for index in request.indices]
            if all(isinstance(part, list | tuple) and len(part) == 1 for part in parts):
                return [part[0] for part in parts]
            self._can_split = False
        return self._getitems(request.epoch, request.indices)

    def _getitems(self, epoch: int, indices: list[Any]) -> Any:
        self._draws.seed(self._seed_of(epoch, SAMPLE, indices[0]))
        return self.dataset.__getitems__(indices)

    def _sample(self, epoch: int, index: Any) -> Any:
        self._draws.seed(self._seed_of(epoch, SAMPLE, index))
        return self.dataset[index]

    def _seed_of(self, epoch: int, purpose: int, index: Any) -> int:
        return derive_seed(self.seed, purpose, epoch, _number(index))

    def _size_of(self, value: Any, request: Request) -> int:
        if not self._single:
            return len(request.indices)
        index = request.indices[0]
        return len(index) if isinstance(index, list | tuple) else batch_size_of(value)


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


def can_pin() -> bool:
    """Whether pinning memory means anything on this machine."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"


def pin(value: Any) -> Any:
    """Copy the tensors of a batch into pinned memory, as a loader does it."""
    return pin_memory(value)


def _stacked(dataset: Any) -> list[Any]:
    datasets = dataset.datasets
    return list(datasets.values() if isinstance(datasets, dict) else datasets)


def _number(index: Any) -> int:
    try:
        return as_int(index)
    except TypeError:  # a key or a tuple: what prints the same is the same sample
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest())


NUM_SAMPLES = 3
NUM_ROWS = 8  # of a data set that is tensors, where looking costs nothing
NO_COPIES = (type, ModuleType, FunctionType, MethodType, torch.nn.Module, torch.Tensor)
DEPTH = 4  # data sets in data sets, and what those call for every sample


def places(length: int, count: int) -> list[int]:
    """Indices spread evenly from the first to the last, and the first once more."""
    if length == 0:
        return []
    spread = sorted({number * (length - 1) // max(count - 1, 1) for number in range(count)})
    return [*spread, 0]


def peek_samples(fetcher: Fetcher) -> list[Any] | None:
    """Samples as the first epoch gives them, the first of them twice; None where they cannot be had like this.

    They come from a copy of the data set: no generator moves, and a file that is opened for the first sample is not
    open yet when workers are started.
    """
    if not isinstance(fetcher.dataset, Sized):
        return None
    try:
        own = fetcher.apart(_copied(fetcher.dataset))
        return [own.sample(index) for index in places(len(fetcher.dataset), NUM_SAMPLES)]
    except Exception:  # a data set that takes other indices, or none before its workers are started
        return None


def _copied(value: Any, depth: int = DEPTH) -> Any:
    """A data set whose own state may move: its attributes are new, the data they refer to is not copied."""
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, (random.Random, numpy_random().Generator, numpy_random().RandomState)):
        return copy.deepcopy(value)
    if depth == 0 or not (isinstance(value, Dataset) or _is_own(value)):
        return value
    if hasattr(value, "__del__"):
        raise TypeError(f"{type(value).__name__} ends something of its own when its copy goes")
    result = copy.copy(value)
    for name, part in vars(value).items():
        if isinstance(part, list) and len(part) <= 100:  # transforms, data sets that are joined
            vars(result)[name] = [_copied(item, depth - 1) for item in part]
        else:
            vars(result)[name] = _copied(part, depth - 1)
    return result


def _is_own(value: Any) -> bool:
    """Whether it is a plain object of Python: no class, function, module or something that torch keeps."""
    if not hasattr(value, "__dict__") or isinstance(value, NO_COPIES):
        return False
    kind: Any = type(value)
    return kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__ and callable(value)
