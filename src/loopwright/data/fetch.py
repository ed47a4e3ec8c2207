"""Fetching samples and collating batches; generators are seeded for each sample from (seed, epoch,
index).

The same object fetches in this process and, pickled or forked, in workers, so that both give the
same batch. `__getitems__` of a data set is called for whole batches until it draws random numbers,
and from then on for one sample at a time, so that a sample does not depend on the other samples of
its batch. A collate function, and a `__getitems__` that does not return a list of samples, are
seeded from the first index of the batch.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sized
from hashlib import blake2b
from operator import index as as_int
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from .._torch_compat import collates_as_torch, pin_memory
from ..errors import WaitInterrupted
from .columns import NamedColumns, is_read_only, stacked
from .containers import map_tensors
from .order import COLLATE, SAMPLE, derive_seed, derive_seeds
from .random import RngTracker, numpy_random
from .stream import Batch, Wait, batch_size_of

Collate = Callable[[Any], Any]


class Request(NamedTuple):
    """The indices of a batch, with their epoch, since persistent workers live for several
    epochs."""

    epoch: int
    indices: list[Any]


class Fetcher:
    """Builds the batch of a request. With `index_is_batch`, one index is one ready batch."""

    def __init__(
        self, dataset: Any, collate: Collate, seed: int, index_is_batch: bool = False
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self._collate = collate
        self._put_together = _fast_collate(collate)
        self._index_is_batch = index_is_batch
        self._by_batch = not index_is_batch and fetches_batches(dataset)
        self._is_random = not is_deterministic(dataset)
        self._is_random_collate = collate not in (default_collate, default_convert)
        is_default = not index_is_batch and self._put_together is not collate
        self._selects = is_default and not self._is_random  # where the data set has columns
        self._is_arrow = is_default and is_arrow(self.dataset)
        # for a function that writes into its samples
        self._copies = not is_default and is_read_only(self.dataset)
        self._select: tuple[int, Callable[[Any], Any] | None] | None = None  # of an epoch
        self._rng, self._collate_rng = RngTracker(), RngTracker()
        self._seeds = SampleSeeds(seed)
        # until `__getitems__` turns out to return something else than a list of samples
        self._can_split = True

    def describe(self) -> dict[str, Any]:
        """Return the length of the data set, where it has one, and the collate function if it is
        not torch's."""
        length = len(self.dataset) if isinstance(self.dataset, Sized) else None
        own = {"collate": self._collate} if self._is_random_collate else {}
        return {"length": length} | own

    def samples_of(self, dataset: Any, indices: list[int]) -> list[Any]:
        """Return samples of the first epoch of another data set, before collation, with seed 0."""
        other = Fetcher(dataset, self._collate, 0, self._index_is_batch)
        return [other._rng.run(other._fetch, Request(0, [index])) for index in indices]

    def __getitem__(self, request: Request) -> Batch:
        is_tracked = self._is_random_collate
        value = self._collate_rng.run(self._build, request) if is_tracked else self._build(request)
        return Batch(value, self._size_of(value, request))

    def _build(self, request: Request) -> Any:
        """Fetch and collate together: the collate function may change samples, so a second attempt
        needs new ones."""
        select = self._columns(request.epoch) if self._selects else None
        if select is not None and _are_numbers(request.indices):
            return select(torch.tensor(request.indices))
        samples = self._rng.run(self._fetch, request) if self._is_random else self._fetch(request)
        if self._copies:
            samples = map_tensors(Tensor.clone, samples)
        if self._collate_rng:
            self._collate_rng.seed(self._seed_of(request.epoch, COLLATE, request.indices[0]))
        return self._put_together(samples)

    def _columns(self, epoch: int) -> Callable[[Any], Any] | None:
        """Return the function that selects batches from columns, looked up anew for each epoch;
        None without."""
        if self._select is None or self._select[0] != epoch:
            from .columnar import columns_of

            columns = columns_of(self.dataset)
            self._select = epoch, None if columns is None else columns.select
        return self._select[1]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_select": None}  # functions, which a spawned worker makes for itself

    def _fetch(self, request: Request) -> Any:
        if self._by_batch:
            return self._fetch_together(request)
        dataset = self.dataset
        indices = request.indices
        if self._is_random and self._rng:
            seed = self._rng.seed
            samples = []
            for index, number in zip(indices, self._seeds.of(request.epoch, indices), strict=True):
                seed(number)
                samples.append(dataset[index])
        else:
            samples = [dataset[index] for index in indices]
        return samples[0] if self._index_is_batch else samples

    def _fetch_together(self, request: Request) -> Any:
        if self._rng and self._can_split:
            parts = [self._getitems(request.epoch, [index]) for index in request.indices]
            if all(isinstance(part, list | tuple) and len(part) == 1 for part in parts):
                return [part[0] for part in parts]
            self._can_split = False
        return self._getitems(request.epoch, request.indices)

    def _getitems(self, epoch: int, indices: list[Any]) -> Any:
        self._rng.seed(self._seed_of(epoch, SAMPLE, indices[0]))
        if self._is_arrow and not self._rng:
            # whole columns, which `__getitems__` would cut into samples
            return self.dataset[indices]
        return self.dataset.__getitems__(indices)

    def _seed_of(self, epoch: int, purpose: int, index: Any) -> int:
        return derive_seed(self.seed, purpose, epoch, as_number(index))

    def _size_of(self, value: Any, request: Request) -> int:
        if not self._index_is_batch:
            return len(request.indices)
        index = request.indices[0]
        return len(index) if isinstance(index, list | tuple) else batch_size_of(value)


class SampleSeeds:
    """The seeds of samples. Those of indices below `MAX_TABLE` are mixed at once for an epoch, and
    then looked up."""

    MAX_TABLE = 1 << 16  # such a table takes 2.6 MB
    MIN_BATCH = 8  # samples, below which a table does not pay

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = -1
        self._table: list[int] = []

    def of(self, epoch: int, indices: list[Any]) -> list[int]:
        """Return the seed of every index, which may be any key, too."""
        if len(indices) >= self.MIN_BATCH:
            try:
                # -1 has a seed of its own
                if min(indices) >= 0 and (last := max(indices)) < self.MAX_TABLE:
                    table = self._table_up_to(last, epoch)
                    return [table[index] for index in indices]
            except TypeError:  # keys
                pass
        return derive_seeds(self._seed, SAMPLE, epoch, last=[as_number(index) for index in indices])

    def _table_up_to(self, last: int, epoch: int) -> list[int]:
        if epoch != self._epoch or last >= len(self._table):
            length = max(len(self._table), 1 << int(last).bit_length())
            self._table = derive_seeds(self._seed, SAMPLE, epoch, last=range(length))
            self._epoch = epoch
        return self._table

    def __reduce__(self) -> Any:
        return SampleSeeds, (self._seed,)  # a worker makes its own table


class BatchSource(Protocol):
    """Returns the batches of requests, in the order of the requests."""

    fetcher: Fetcher
    wait: Wait | None  # what ends `next`, where something does

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        """Replace the previous requests."""

    def next(self) -> Batch: ...

    def close(self) -> None: ...


class LocalSource:
    """Builds every batch in this process, on demand."""

    def __init__(self, fetcher: Fetcher, pin_memory: bool) -> None:
        self.fetcher = fetcher
        self._pins = pin_memory and can_pin()
        self._requests: Iterator[Request] = iter(())
        self.wait: Wait | None = None

    def start(self, epoch: int, requests: Iterator[Request]) -> None:
        self._requests = requests

    def next(self) -> Batch:
        batch = self.fetcher[next(self._requests)]
        # the data set caught it: the batch may be another one
        if self.wait is not None and self.wait.has_raised:
            raise WaitInterrupted
        return Batch(pin_memory(batch.value), batch.size) if self._pins else batch

    def close(self) -> None:
        self._requests = iter(())


def is_deterministic(dataset: Any) -> bool:
    """Whether a data set is known to draw no random numbers, so that it needs no seeding."""
    kind = type(dataset)
    if kind is Subset:
        return is_deterministic(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(is_deterministic, dataset.datasets))
    if kind is StackDataset:
        return all(map(is_deterministic, stacked(dataset)))
    return kind in (
        TensorDataset,
        NamedColumns,
        torch.Tensor,
        np.ndarray,
        np.memmap,
        list,
        tuple,
        range,
    )


def fetches_batches(dataset: Any) -> bool:
    """Whether a data set defines `__getitems__`; for torch's containers, whether the data set
    inside does."""
    method = getattr(type(dataset), "__getitems__", None)
    if method is Subset.__getitems__:
        return fetches_batches(dataset.dataset)
    if method is StackDataset.__getitems__:
        return any(map(fetches_batches, stacked(dataset)))
    return callable(method)


def can_pin() -> bool:
    """Whether this machine has an accelerator that uses pinned memory."""
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return accelerator is not None and accelerator.type != "mps"


def _fast_collate(collate: Collate) -> Collate:
    """Return a function with the results of `collate`: torch's default has a faster one."""
    if collate is not default_collate or not collates_as_torch():
        return collate
    from .columnar import collate_samples

    return collate_samples


def is_arrow(dataset: Any) -> bool:
    """Whether it is a `datasets.Dataset`, of which an index of a list of rows gives a dict of
    columns."""
    kind = type(dataset)
    return kind.__name__ == "Dataset" and kind.__module__.partition(".")[0] == "datasets"


def _are_numbers(indices: list[Any]) -> bool:
    return set(map(type, indices)) == {int} and min(indices) >= 0


def as_number(index: Any) -> int:
    """Return the number that stands for an index in derived seeds."""
    if type(index) is int:
        return index
    try:
        return as_int(index)
    except TypeError:  # a key or a tuple: equal text means the same sample
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest())


NUM_SAMPLES = 3
NUM_ROWS = 8  # of a data set of tensors, where reading is cheap
NO_COPIES = (type, ModuleType, FunctionType, MethodType, torch.nn.Module, torch.Tensor)
DEPTH = 4  # of nested data sets and their transforms


def spread_indices(length: int, count: int) -> list[int]:
    """Return evenly spread indices from the first to the last, and the first one again."""
    if length == 0:
        return []
    spread = sorted({number * (length - 1) // max(count - 1, 1) for number in range(count)})
    return [*spread, 0]


def peek_samples(fetcher: Fetcher) -> list[Any] | None:
    """Return a few samples of the first epoch, the first one twice; None where reading them fails.

    They are read from a copy of the data set: no generator changes state, and a file that is opened
    with the first sample is not open yet when workers are forked.
    """
    dataset = fetcher.dataset
    try:
        indices = spread_indices(len(dataset), NUM_SAMPLES)
        return fetcher.samples_of(_copied(dataset), indices)
    except Exception:  # a data set with other indices, or one that works only inside workers
        return None


def _copied(value: Any, depth: int = DEPTH) -> Any:
    """Return a copy of a data set whose attributes may change; the data that they refer to is
    shared."""
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, (random.Random, numpy_random().Generator, numpy_random().RandomState)):
        return copy.deepcopy(value)
    if depth == 0 or not (isinstance(value, Dataset) or _is_own(value)):
        return value
    if hasattr(value, "__del__"):
        raise TypeError(f"{type(value).__name__} has __del__, which would run for its copy")
    result = copy.copy(value)
    for name, part in vars(value).items():
        if isinstance(part, list) and len(part) <= 100:  # transforms, concatenated data sets
            vars(result)[name] = [_copied(item, depth - 1) for item in part]
        else:
            vars(result)[name] = _copied(part, depth - 1)
    return result


def _is_own(value: Any) -> bool:
    """Whether it is a plain Python object: callable, without its own pickling, no class, function
    or module."""
    if not hasattr(value, "__dict__") or isinstance(value, NO_COPIES):
        return False
    kind: Any = type(value)
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and callable(value)
    )
