"""Open a stream over the data that a user passes: a data set, tensors, a DataLoader or an iterable
of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    RandomSampler,
    default_collate,
)

from .._torch_compat import iterates_as_torch
from ..errors import ConfigurationError, check_number
from .columns import check_list, from_columns, is_frame, refuse
from .fetch import Collate, Fetcher, LocalSource, fetches_batches, is_deterministic
from .indexed import IndexedStream, Position, TensorStream, is_tensor_data
from .iterated import Batching, IteratedStream, SequenceStream
from .order import BatchPlan, Order, SequentialOrder, ShuffledOrder, order_of
from .sharding import AlreadySharded, Shard, ShardedBatches
from .stream import Batch, Stateful, Stream, batch_size_of
from .workers import WorkerSettings, WorkerSource

if TYPE_CHECKING:
    from .cursor import Cursor

__all__ = ["Batch", "Shard", "Stream", "as_dataset", "batch_size_of", "open_stream"]

DEFAULT_BATCH_SIZE = 32
NO_DATA = nn.Module | Optimizer | str | bytes | PurePath | type | int | float


@runtime_checkable
class _MapStyle(Protocol):
    def __getitem__(self, index: Any) -> Any: ...
    def __len__(self) -> int: ...


def open_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    seed: int,
    shuffle: bool,
    collate_fn: Callable[[Any], Any] | None = None,
    shard: Shard | None = None,
) -> Stream:
    """Open a stream over a data set, tensors, a DataLoader, a sequence of batches, or any iterable
    of batches.

    Args:
        data: The data.
        batch_size: Samples per batch of a data set (None means 32); a DataLoader keeps its own.
        seed: Determines, with the epoch, the order and the randomness of samples.
        shuffle: Whether to shuffle a data set in each epoch; a DataLoader keeps its own order.
        collate_fn: Makes a batch of a list of samples of a data set; torch's `default_collate` by
            default.
        shard: Rank and world size; every batch is then a global batch, and this process gets its
            part of it.

    >>> import torch
    >>> stream = open_stream(torch.arange(6.0).reshape(3, 2), batch_size=2, seed=0, shuffle=False)
    >>> stream.begin(epoch=0)
    >>> [batch.size for batch in stream]
    [2, 1]
    """
    if batch_size is not None:
        check_number("batch_size", batch_size, least=1, of="samples")
    data = as_dataset(data)
    stream = _open(data, batch_size, collate_fn, seed=seed, shuffle=shuffle, shard=shard)
    if isinstance(data, DataLoader):
        stream.pin_memory = bool(data.pin_memory)
    return stream if shard is None or stream.is_shared else ShardedBatches(stream, shard)


def refuse_shuffled(data: Any) -> None:
    """Raise a `ConfigurationError` for a loader that shuffles: outputs of `predict` are in the
    order of the data."""
    if isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler):
        raise ConfigurationError(
            "predict-shuffled",
            "predict was given a DataLoader that shuffles, so the outputs could not be matched "
            "with the samples: pass the data set itself, or a DataLoader without `shuffle=True`.",
        )


def as_dataset(data: Any) -> Any:
    """Return a data set of the rows of tensors and arrays (one, a tuple or a dict of them); other
    data unchanged."""
    if isinstance(data, NO_DATA):
        refuse(data)
    is_columns = isinstance(data, Tensor | np.ndarray | tuple | Mapping)
    if not is_columns or isinstance(data, Dataset | Stateful):
        return data
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
    size = batch_size or DEFAULT_BATCH_SIZE
    collate = collate_fn or default_collate
    if isinstance(data, IterableDataset):
        return _open_items(data, Batching(size, False, collate), seed, shard)
    if is_samples(data, batch_size):
        order: Order = ShuffledOrder(data, seed) if shuffle else SequentialOrder(data)
        plan = BatchPlan(order, size, drop_last=False)
        return _open_indexed(data, plan, collate, seed, WorkerSettings(), shard)
    _check_batches(data, batch_size, collate_fn)
    if isinstance(data, Stateful):
        stream = _open_batches(data, seed, "PER_ITEM")  # type: ignore[arg-type]  # iterable
        is_divided = isinstance(data, DataLoader) and isinstance(data.sampler, DistributedSampler)
        return stream if shard is None or not is_divided else AlreadySharded(stream, shard.world)
    if iterates_as_torch(data):
        return _open_loader(data, seed, shard)
    if isinstance(data, Sequence):
        return SequenceStream(data)
    return _open_batches(data, seed, "UNSEEDED")


def is_samples(data: Any, batch_size: int | None) -> bool:
    """Whether `data` is a data set: by its class, or because it has indices and is no iterable of
    batches."""
    if isinstance(data, Dataset):
        return True
    if is_frame(data) or not isinstance(data, _MapStyle):
        return False
    if batch_size is not None or isinstance(data, Sequence):
        return batch_size is not None
    return fetches_batches(data) or not isinstance(data, Iterable)


def _check_batches(data: Any, batch_size: int | None, collate_fn: object) -> None:
    """Refuse what is no iterable of batches, and settings that such an iterable has no use for."""
    if not isinstance(data, Iterable) or is_frame(data):
        refuse(data)
    if isinstance(data, list):
        check_list(data)
    if batch_size is not None or collate_fn is not None:
        name = "batch_size" if batch_size is not None else "collate_fn"
        raise ConfigurationError(
            "batches-ready-made",
            f"{name} was given together with a {type(data).__name__}, which makes its own "
            f"batches: leave out {name}, or pass the data set itself.",
        )


def _open_loader(loader: DataLoader[Any], seed: int, shard: Shard | None) -> Stream:
    """Open a stream over the data set of a plain DataLoader, with the settings of the loader."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        if loader.num_workers or isinstance(dataset, IterDataPipe):
            return _open_workers(loader, seed)
        batching = Batching(
            loader.batch_size, loader.drop_last, loader.collate_fn, bool(loader.pin_memory)
        )
        return _open_items(dataset, batching, seed, shard)
    plan = _batch_plan_of(loader, seed)
    if plan is None:
        return _open_batches(loader, seed, "UNSEEDED")
    return _open_indexed(dataset, plan, loader.collate_fn, seed, WorkerSettings.of(loader), shard)


def _open_indexed(
    dataset: Any,
    batch_plan: BatchPlan,
    collate: Collate,
    seed: int,
    settings: WorkerSettings,
    shard: Shard | None,
) -> Stream:
    """Open a stream over a map-style data set; a `TensorStream` where this gives the same batches
    faster."""
    is_divided = shard is not None and isinstance(batch_plan.order.sampler, DistributedSampler)
    cuts = shard is not None and not is_divided and not batch_plan.index_is_batch
    if cuts and shard is not None and shard.is_per_process:
        cuts = batch_plan.is_even  # batches of a batch sampler are for one process each
        batch_plan = batch_plan.scaled(shard.scale)
    position = Position(batch_plan, seed, shard if cuts else None)
    stream = _open_position(dataset, position, collate, seed=seed, settings=settings)
    if shard is None or cuts:
        return stream
    return AlreadySharded(stream, shard.world) if is_divided else ShardedBatches(stream, shard)


def _open_position(
    dataset: Any, position: Position, collate: Collate, *, seed: int, settings: WorkerSettings
) -> Stream:
    batch_plan = position.batch_plan
    is_columns = batch_plan.is_even and settings.worker_init_fn is None
    if is_columns and is_tensor_data(dataset, collate, settings.num_workers):
        return TensorStream(position, dataset, settings.pin_memory)
    fetcher = Fetcher(dataset, collate, seed, batch_plan.index_is_batch)
    if settings.num_workers:
        source = WorkerSource(fetcher, settings)
        return IndexedStream(position, source, settings.in_order, reads_ahead=True)
    is_plain = collate is default_collate and is_deterministic(dataset)
    return IndexedStream(position, LocalSource(fetcher, settings.pin_memory), reads_ahead=is_plain)


def _open_items(
    dataset: Iterable[Any], batching: Batching, seed: int, shard: Shard | None
) -> Stream:
    """Open a stream over an iterable data set that is read in this process."""
    if batching.size is None:
        shard = None  # items that are batches already cannot be cut
    elif shard is not None:
        batching = replace(batching, size=batching.size * shard.scale)
    cursor = _cursor(dataset, seed, "PER_ITEM")
    return IteratedStream(cursor, batching, length=_length_of(dataset), shard=shard)


def _open_workers(loader: DataLoader[Any], seed: int) -> Stream:
    """Open a stream over an iterable data set that the workers of a loader read."""
    stream = _open_batches(loader, seed, "PER_EPOCH")
    # not len(loader), which makes torch warn about its own estimate
    if (samples := _length_of(loader.dataset)) is not None:
        size = loader.batch_size or 1
        stream.num_batches = samples // size if loader.drop_last else -(-samples // size)
    return stream


def _open_batches(batches: Iterable[Any], seed: int, randomness: str) -> IteratedStream:
    ready = Batching(None, drop_last=False, collate=_unchanged)
    length = None if randomness == "PER_EPOCH" else _length_of(batches)
    cursor = _cursor(batches, seed, randomness)
    return IteratedStream(cursor, ready, length=length)


def _cursor(source: Iterable[Any], seed: int, randomness: str) -> Cursor:
    """Return a cursor; its modules are imported only for data that is iterated."""
    from .cursor import Cursor, Randomness

    return Cursor(source, seed, Randomness[randomness])


def _batch_plan_of(loader: DataLoader[Any], seed: int) -> BatchPlan | None:
    batches = loader.batch_sampler
    is_plain = type(batches) is BatchSampler
    sampler = loader.sampler if batches is None or is_plain else batches
    if not isinstance(sampler, Sized):  # it may be infinite, so an epoch cannot be drawn in advance
        return None
    if type(batches) is BatchSampler:
        order = order_of(batches.sampler, seed)
        return BatchPlan(order, batches.batch_size, drop_last=batches.drop_last)
    order = order_of(sampler, seed)
    return BatchPlan(order, None, drop_last=False, index_is_batch=batches is None)


def _length_of(data: object) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):  # of a loader whose data set has no length
        return None


def _unchanged(batch: Any) -> Any:
    return batch
