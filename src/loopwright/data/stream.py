"""Opening a stream over whatever the user calls data."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from ..errors import ConfigurationError, DataError
from .columns import is_frame
from .feeds import WorkerSettings
from .interface import Batch, Stateful, Stream, batch_size_of
from .iterated import Batching
from .loaders import is_plain, open_indexed, open_items, open_iterable, open_loader, open_stateful
from .plan import Planner
from .samplers import Order, SequentialOrder, ShuffledOrder
from .sequences import SequenceStream
from .sharding import Shard, ShardedBatches

__all__ = ["Batch", "Shard", "Stream", "as_dataset", "batch_size_of", "open_stream"]

DEFAULT_BATCH_SIZE = 32
NO_DATA = nn.Module | Optimizer | str | bytes | PurePath | type | int | float


@runtime_checkable
class _MapStyle(Protocol):
    def __getitem__(self, index: Any) -> Any: ...
    def __len__(self) -> int: ...


@runtime_checkable
class _FetchesBatches(Protocol):
    def __getitems__(self, indices: Any) -> Any: ...


def open_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int,
    shuffle: bool,
    collate_fn: Callable[[Any], Any] | None = None,
    shard: Shard | None = None,
) -> Stream:
    """A stream over a data set, tensors, a DataLoader, a sequence of batches, or any iterable of batches.

    `batch_size` (None means 32), `shuffle` and `collate_fn` are for data sets; a DataLoader keeps its own. With a
    `shard`, every batch is one batch of all processes together, and this one gets its part of it.
    """
    _check_batch_size(batch_size)
    data = as_dataset(data)
    stream = _open(data, batch_size, collate_fn, seed=seed, shuffle=shuffle, shard=shard)
    return stream if shard is None or stream.is_shared else ShardedBatches(stream, shard)


def refuse_shuffled(data: Any) -> None:
    """Refuse a loader that shuffles where the outputs are to be in the order of the data."""
    if isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler):
        raise ConfigurationError(
            "predict was given a DataLoader that shuffles, so nobody could tell which output belongs to which sample: "
            "pass the data set itself, or a DataLoader without `shuffle=True`."
        )


def as_dataset(data: Any) -> Any:
    """Tensors and arrays, alone, in a tuple or in a dict, as a data set of their rows; anything else as it is."""
    is_plain_data = isinstance(data, Dataset | Stateful) and not isinstance(data, NO_DATA)
    if is_plain_data or not isinstance(data, Tensor | np.ndarray | tuple | Mapping | NO_DATA):
        return data
    from .columns import from_columns, refuse

    if isinstance(data, NO_DATA):
        refuse(data)
    return from_columns(data)


def _open(
    data: Any,
    batch_size: int | None,
    collate_fn: Callable[[Any], Any] | None,
    *,
    seed: int,
    shuffle: bool,
    shard: Shard | None,
) -> Stream:
    if isinstance(data, IterableDataset):
        batching = Batching(batch_size or DEFAULT_BATCH_SIZE, False, collate_fn or default_collate)
        return open_items(data, batching, seed, shard)
    if _is_samples(data, batch_size):
        return _open_dataset(data, batch_size, collate_fn, seed=seed, shuffle=shuffle, shard=shard)
    _check_accepted(data)
    _check_no_batching(data, batch_size, collate_fn)
    if isinstance(data, Stateful):
        return open_stateful(data, seed)  # type: ignore[arg-type]  # checked to be iterable
    if is_plain(data):
        return open_loader(data, seed, shard)
    return SequenceStream(data) if isinstance(data, Sequence) else open_iterable(data, seed)


def _open_dataset(
    dataset: Any,
    batch_size: int | None,
    collate_fn: Callable[[Any], Any] | None,
    *,
    seed: int,
    shuffle: bool,
    shard: Shard | None,
) -> Stream:
    if not isinstance(dataset, Sized):
        raise DataError(f"{type(dataset).__name__} has no length: give it `__len__`, or make it an IterableDataset.")
    order: Order = ShuffledOrder(dataset, seed) if shuffle else SequentialOrder(dataset)
    planner = Planner(order, batch_size or DEFAULT_BATCH_SIZE, drop_last=False)
    collate = collate_fn or default_collate
    return open_indexed(dataset, planner, collate, seed=seed, settings=WorkerSettings(), shard=shard)


def _is_samples(data: Any, batch_size: int | None) -> bool:
    """Whether `data` is a data set: by its class, or because nothing else makes sense of it."""
    if isinstance(data, Dataset):
        return True
    if is_frame(data) or not isinstance(data, _MapStyle):
        return False
    if isinstance(data, Sequence):
        return batch_size is not None
    return batch_size is not None or isinstance(data, _FetchesBatches) or not isinstance(data, Iterable)


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ConfigurationError(f"batch_size is {batch_size!r}: it must be a positive whole number.")


def _check_accepted(data: Any) -> None:
    from .columns import check_list, refuse

    if not isinstance(data, Iterable) or is_frame(data):
        refuse(data)
    if isinstance(data, list):
        check_list(data)


def _check_no_batching(data: Any, batch_size: int | None, collate_fn: object) -> None:
    name = "batch_size" if batch_size is not None else "collate_fn"
    if batch_size is not None or collate_fn is not None:
        raise ConfigurationError(
            f"{name} was given together with a {type(data).__name__}, which makes its own batches: leave out "
            f"{name}, or pass the data set itself."
        )
