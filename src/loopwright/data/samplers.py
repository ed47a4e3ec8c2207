"""Where the indices of an epoch come from: our own order, or a sampler made a function of (seed, epoch)."""

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

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

from .interface import HasEpochs, Stateful
from .order import SAMPLER, derive_seed, permutation
from .seeding import preserved_rng, seed_sample

Indices: TypeAlias = range | Tensor | list[Any]


class Order(Protocol):
    """The indices of each epoch; `sampler` is the object that may hold state of its own."""

    @property
    def sampler(self) -> object: ...
    def __len__(self) -> int: ...
    def indices(self, epoch: int) -> Indices: ...
    def hidden_state(self) -> str | None:
        """Name of what the order may depend on besides (seed, epoch), if anything."""

    def describe(self) -> str:
        """What makes it another order."""


class SequentialOrder:
    """Every index of a data set, from first to last."""

    sampler: object = None

    def __init__(self, source: Sized) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def indices(self, epoch: int) -> Indices:
        return range(len(self))

    def hidden_state(self) -> str | None:
        return None

    def describe(self) -> str:
        return "sequential"


class ShuffledOrder:
    """Every index of a data set, shuffled anew in each epoch."""

    sampler: object = None

    def __init__(self, source: Sized, seed: int) -> None:
        self._source = source
        self._seed = seed

    def __len__(self) -> int:
        return len(self._source)

    def indices(self, epoch: int) -> Indices:
        return permutation(self._seed, epoch, len(self))

    def hidden_state(self) -> str | None:
        return None

    def describe(self) -> str:
        return "shuffled"


class FixedOrder:
    """Indices, or lists of indices, that somebody wrote down."""

    sampler: object = None

    def __init__(self, indices: Iterable[Any]) -> None:
        self._indices = indices.tolist() if isinstance(indices, Tensor) else list(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def indices(self, epoch: int) -> Indices:
        return self._indices

    def hidden_state(self) -> str | None:
        return None

    def describe(self) -> str:
        return f"{len(self)} given indices"


class SampledOrder:
    """What a sampler gives when every generator it could draw from is seeded from (seed, epoch)."""

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler = sampler
        self._seed = seed

    def __len__(self) -> int:
        return len(self.sampler)

    def indices(self, epoch: int) -> Indices:
        if isinstance(self.sampler, HasEpochs):
            self.sampler.set_epoch(epoch)
        seed = derive_seed(self._seed, SAMPLER, epoch)
        with preserved_rng(), _own_generator(self.sampler, seed):
            seed_sample(seed)
            return list(self.sampler)

    def hidden_state(self) -> str | None:
        known = _draws_from_its_generator(self.sampler) or isinstance(self.sampler, HasEpochs | Stateful)
        return None if known else type(self.sampler).__name__

    def describe(self) -> str:
        name = type(self.sampler).__name__
        is_divided = isinstance(self.sampler, DistributedSampler)  # which gives fewer on more processes
        return name if is_divided else f"{name} of {len(self)}"


class GroupedOrder:
    """Lists of consecutive indices of another order (a `BatchSampler` used as a sampler)."""

    def __init__(self, order: Order, size: int, drop_last: bool) -> None:
        self.sampler = order.sampler
        self._order = order
        self._size = size
        self._drop_last = drop_last

    def __len__(self) -> int:
        return (len(self._order) + (0 if self._drop_last else self._size - 1)) // self._size

    def indices(self, epoch: int) -> Indices:
        indices = self._order.indices(epoch)
        flat = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        return list(BatchSampler(flat, self._size, self._drop_last))

    def hidden_state(self) -> str | None:
        return self._order.hidden_state()

    def describe(self) -> str:
        return f"{self._order.describe()}, {self._size} at once"


def order_of(sampler: Any, seed: int) -> Order:
    """The order a loader's sampler stands for."""
    if type(sampler) is SequentialSampler:
        return SequentialOrder(sampler.data_source)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return ShuffledOrder(sampler.data_source, seed)
    if type(sampler) is BatchSampler:
        return GroupedOrder(order_of(sampler.sampler, seed), sampler.batch_size, sampler.drop_last)
    if isinstance(sampler, list | tuple | range | Tensor):
        return FixedOrder(sampler)
    return SampledOrder(sampler, seed)


def _draws_from_its_generator(sampler: object) -> bool:
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@contextmanager
def _own_generator(sampler: Any, seed: int) -> Iterator[None]:
    if not _draws_from_its_generator(sampler):
        yield
        return
    theirs = sampler.generator
    sampler.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        sampler.generator = theirs
