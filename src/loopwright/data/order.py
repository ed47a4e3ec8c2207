"""The order of samples as a pure function of (seed, epoch), the derived seeds, and the division
into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .._torch_compat import draws_each_sample_once
from ..errors import DataError
from .random import preserved_rng, seed_sample
from .stream import HasEpochs, Stateful

_MASK = (1 << 64) - 1
# 2**64 divided by the golden ratio: consecutive inputs land far apart
_STRIDE = 0x9E3779B97F4A7C15

_MAX_LISTED = 1 << 16  # indices of an epoch that are kept as Python numbers, 2.6 MB
_FEW = 16  # numbers, up to which Python is faster than an array
_S1, _S27, _S30, _S31 = map(np.uint64, (1, 27, 30, 31))
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

# Purposes of derived seeds; each has its own number, so that no two sequences of random numbers are
# the same.
ORDER = 1
SAMPLE = 2
COLLATE = 3
SAMPLER = 4
WORKER = 5


def derive_seed(seed: int, *parts: int) -> int:
    """Mix integers into one seed of 63 bits, the same on every platform and in every process.

    >>> derive_seed(0, 1) == derive_seed(0, 1) != derive_seed(0, 2)
    True
    """
    state = _mix((seed + _STRIDE) & _MASK)
    for part in parts:
        state = _mix((state + part + _STRIDE) & _MASK)
    return state >> 1


def derive_seeds(seed: int, *parts: int, last: Sequence[int]) -> list[int]:
    """Return `derive_seed(seed, *parts, number)` for every number in `last`, all of them mixed at
    once.

    >>> derive_seeds(0, 1, last=[2, -3]) == [derive_seed(0, 1, 2), derive_seed(0, 1, -3)]
    True
    """
    state = _mix((seed + _STRIDE) & _MASK)
    for part in parts:
        state = _mix((state + part + _STRIDE) & _MASK)
    state += _STRIDE
    numbers = _as_words(last)
    if numbers is None:
        return [_mix((state + part) & _MASK) >> 1 for part in last]
    numbers += np.uint64(state & _MASK)
    numbers ^= numbers >> _S30
    numbers *= _FIRST
    numbers ^= numbers >> _S27
    numbers *= _SECOND
    numbers ^= numbers >> _S31
    seeds: list[int] = (numbers >> _S1).tolist()
    return seeds


def _as_words(numbers: Sequence[int]) -> Any:
    """Return an array of 64 bits for each number, which wraps as the mask does; None where Python
    is better."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64).view(np.uint64)
    if len(numbers) < _FEW or set(map(type, numbers)) != {int}:
        return None
    try:
        return np.array(numbers, dtype=np.int64).view(np.uint64)
    except OverflowError:  # the numbers of keys have 64 bits without a sign
        return None


def permutation(seed: int, epoch: int, length: int) -> Tensor:
    """Return the shuffled order of `length` samples in an epoch, from seed and epoch alone.

    >>> sorted(permutation(seed=0, epoch=1, length=4).tolist())
    [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, ORDER, epoch))
    return torch.randperm(length, generator=generator)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


Indices: TypeAlias = range | Tensor | list[Any]


class Order(ABC):
    """The indices of each epoch, of a source with a length: a data set, a list or a sampler."""

    sampler: Any = None  # the user's, which may have state

    def __init__(self, source: Sized, seed: int = 0) -> None:
        self._source = source
        self._seed = seed

    def __len__(self) -> int:
        return len(self._source)

    @abstractmethod
    def indices(self, epoch: int) -> Indices: ...

    @abstractmethod
    def describe(self) -> str:
        """Return the text that identifies the order in a run's fingerprint."""

    def hidden_state(self) -> str | None:
        """Return the name of a sampler whose order may depend on more than (seed, epoch), or
        None."""
        return None


class SequentialOrder(Order):
    """Every index of a data set, from first to last."""

    def indices(self, epoch: int) -> Indices:
        return range(len(self))

    def describe(self) -> str:
        return "sequential"


class ShuffledOrder(Order):
    """Every index of a data set, shuffled anew in each epoch."""

    def indices(self, epoch: int) -> Indices:
        return permutation(self._seed, epoch, len(self))

    def describe(self) -> str:
        return "shuffled"


class FixedOrder(Order):
    """Indices, or lists of indices, given as a list, tuple, range or tensor."""

    def indices(self, epoch: int) -> Indices:
        return _listed(self._source)

    def describe(self) -> str:
        return f"{len(self)} given indices"


class SampledOrder(Order):
    """The indices of a sampler, drawn while all generators are seeded from (seed, epoch)."""

    def __init__(self, sampler: Any, seed: int) -> None:
        super().__init__(sampler, seed)
        self.sampler = sampler

    def indices(self, epoch: int) -> Indices:
        sampler = self.sampler
        if isinstance(sampler, HasEpochs):
            sampler.set_epoch(epoch)
        seed = derive_seed(self._seed, SAMPLER, epoch)
        with preserved_rng(), _own_generator(self.sampler, seed):
            seed_sample(seed)
            return list(self.sampler)

    def hidden_state(self) -> str | None:
        known = _draws_from_its_generator(self.sampler) or isinstance(
            self.sampler, HasEpochs | Stateful
        )
        return None if known else type(self.sampler).__name__

    def describe(self) -> str:
        name = type(self.sampler).__name__
        # its length depends on the world size
        is_divided = isinstance(self.sampler, DistributedSampler)
        return name if is_divided else f"{name} of {len(self)}"


class GroupedOrder(Order):
    """Lists of consecutive indices of another order (a `BatchSampler` used as a sampler)."""

    def __init__(self, batches: BatchSampler, order: Order) -> None:
        super().__init__(batches)
        self.sampler = order.sampler
        self._order = order
        self._size = batches.batch_size
        self._drop_last = batches.drop_last

    def indices(self, epoch: int) -> Indices:
        flat = _listed(self._order.indices(epoch))
        return list(BatchSampler(flat, self._size, self._drop_last))

    def hidden_state(self) -> str | None:
        return self._order.hidden_state()

    def describe(self) -> str:
        return f"{self._order.describe()}, {self._size} at once"


def _listed(indices: Any) -> list[Any]:
    return indices.tolist() if isinstance(indices, Tensor) else list(indices)


def order_of(sampler: Any, seed: int) -> Order:
    """Return the order that corresponds to a loader's sampler."""
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    if type(sampler) is RandomSampler and draws_each_sample_once(sampler):
        return ShuffledOrder(sampler.data_source, seed)
    if type(sampler) is BatchSampler:
        return GroupedOrder(sampler, order_of(sampler.sampler, seed))
    if isinstance(sampler, list | tuple | range | Tensor):
        return FixedOrder(_listed(sampler))
    return SampledOrder(sampler, seed)


def _draws_from_its_generator(sampler: object) -> bool:
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@contextmanager
def _own_generator(sampler: Any, seed: int) -> Iterator[None]:
    if not _draws_from_its_generator(sampler):
        yield
        return
    before = sampler.generator
    sampler.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        sampler.generator = before


class EvenBatches:
    """Batches of equal size cut from an order; the last one may be shorter.

    A position inside a batch means the rest of that batch.
    """

    def __init__(self, order: Indices, batch_size: int, drop_last: bool) -> None:
        length = len(order)
        self.order = order
        self.batch_size = batch_size
        self.num_samples = length - length % batch_size if drop_last else length
        self.num_batches = -(-self.num_samples // batch_size)
        self._listed: Indices | None = None  # the order as Python numbers, where it is not long

    def span(self, position: int) -> tuple[int, int]:
        """Return start and end of the rest of the batch at `position`; both are equal at the end of
        the epoch."""
        end = position - position % self.batch_size + self.batch_size
        return position, max(position, min(end, self.num_samples))

    def indices(self, start: int, stop: int) -> list[Any]:
        if self._listed is None:
            order = self.order
            self._listed = (
                order.tolist() if isinstance(order, Tensor) and len(order) <= _MAX_LISTED else order
            )
        part = self._listed[start:stop]  # as `_listed`, without a call in every step
        return part.tolist() if isinstance(part, Tensor) else list(part)


class GivenBatches:
    """Batches of indices from a batch sampler."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = [_listed(batch) for batch in batches]
        if not all(self._batches):
            raise DataError(
                "empty-batch",
                "The batch sampler returned a batch without indices: skip empty batches.",
            )
        self._ends = list(accumulate(map(len, self._batches)))
        self.num_batches = len(self._batches)
        self.num_samples = self._ends[-1] if self._ends else 0

    def span(self, position: int) -> tuple[int, int]:
        number = bisect_right(self._ends, position)
        return position, self._ends[number] if number < self.num_batches else position

    def indices(self, start: int, stop: int) -> list[Any]:
        number = bisect_right(self._ends, start)
        first = self._ends[number] - len(self._batches[number])
        return self._batches[number][start - first : stop - first]


EpochPlan: TypeAlias = EvenBatches | GivenBatches


class BatchPlan:
    """How every epoch of a data set is divided into batches.

    Without `batch_size`, `order` gives batches of indices. With `index_is_batch`, an index is one
    ready batch.
    """

    def __init__(
        self, order: Order, batch_size: int | None, drop_last: bool, index_is_batch: bool = False
    ) -> None:
        self.order = order
        self.batch_size = 1 if index_is_batch else batch_size
        self.drop_last = drop_last
        self.index_is_batch = index_is_batch

    def scaled(self, factor: int) -> BatchPlan:
        """Return a plan with a batch size `factor` times as large; the same plan for batches of a
        batch sampler."""
        if self.batch_size is None or self.index_is_batch:
            return self
        return BatchPlan(self.order, self.batch_size * factor, self.drop_last)

    @property
    def is_even(self) -> bool:
        """Whether batches of `batch_size` are cut from an order of samples."""
        return self.batch_size is not None and not self.index_is_batch

    def describe(self) -> dict[str, Any]:
        """Return the properties that identify the batches in a run's fingerprint."""
        size = None if self.index_is_batch else self.batch_size
        return {"batch_size": size, "drop_last": self.drop_last, "order": self.order.describe()}

    def sizes(self) -> tuple[int | None, int | None]:
        """Return the numbers of batches and samples of an epoch that is not drawn yet; None where
        unknown."""
        length = len(self.order)
        if self.batch_size is None:
            return length, None
        plan = EvenBatches(range(length), self.batch_size, self.drop_last)
        return plan.num_batches, None if self.index_is_batch else plan.num_samples

    def for_epoch(self, epoch: int) -> EpochPlan:
        indices = self.order.indices(epoch)
        if self.batch_size is not None:
            return EvenBatches(indices, self.batch_size, self.drop_last)
        return GivenBatches(list(indices))


def spans_from(
    plan: EpochPlan, position: int, limit: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield start and end of every batch from a position on; the first has at most `limit`
    samples."""
    start, stop = plan.span(position)
    if limit is not None:
        stop = min(stop, start + limit)
    while start < stop:
        yield start, stop
        start, stop = plan.span(stop)
