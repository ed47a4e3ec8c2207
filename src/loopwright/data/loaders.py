"""Taking over a DataLoader: its data set, batches and workers stay, the order becomes ours."""

from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, IterDataPipe

from .feeds import LocalFeed, WorkerFeed, WorkerSettings
from .fetching import Collate, Fetcher
from .indexed import IndexedStream, Place
from .interface import Stream
from .iterated import Batching, Cursor, IteratedStream, Randomness
from .plan import Planner
from .samplers import order_of
from .sharding import AlreadySharded, Shard, ShardedBatches
from .tensors import TensorStream, is_tensors

_INSTEAD = (
    "Use a map-style data set, num_workers=0 with a data set that has `state_dict` and `load_state_dict`, "
    "or a loader that has them (such as torchdata's StatefulDataLoader)."
)


def is_plain(loader: object) -> bool:
    """Whether a loader iterates the way torch's own does, so that nothing is lost by doing it ourselves."""
    if not isinstance(loader, DataLoader):
        return False
    kind = type(loader)
    return kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator


def open_loader(loader: DataLoader[Any], seed: int, shard: Shard | None = None) -> Stream:
    """A stream over the data of a plain DataLoader."""
    if isinstance(loader.dataset, IterableDataset):
        if loader.num_workers or isinstance(loader.dataset, IterDataPipe):
            return _open_iterable_loader(loader, seed)
        batching = Batching(loader.batch_size, loader.drop_last, loader.collate_fn, bool(loader.pin_memory))
        return open_items(loader.dataset, batching, seed, shard)
    planner = _planner_of(loader, seed)
    if planner is None:
        return open_iterable(loader, seed)
    settings = WorkerSettings.of(loader)
    return open_indexed(loader.dataset, planner, loader.collate_fn, seed=seed, settings=settings, shard=shard)


def open_indexed(
    dataset: Any,
    planner: Planner,
    collate: Collate,
    *,
    seed: int,
    settings: WorkerSettings,
    shard: Shard | None = None,
) -> Stream:
    """A stream over a map-style data set, on the fast path where that gives the same batches."""
    is_divided = shard is not None and isinstance(planner.order.sampler, DistributedSampler)
    cuts = shard is not None and not is_divided and not planner.single
    if cuts and shard is not None and shard.is_per_process:
        cuts = planner.is_even  # given batches are for one process each
        planner = planner.scaled(shard.scale)
    place = Place(planner, seed, shard if cuts else None)
    stream = _open_place(dataset, place, collate, seed=seed, settings=settings)
    if shard is None or cuts:
        return stream
    return AlreadySharded(stream, shard.world) if is_divided else ShardedBatches(stream, shard)


def _open_place(dataset: Any, place: Place, collate: Collate, *, seed: int, settings: WorkerSettings) -> Stream:
    planner = place.planner
    if planner.is_even and settings.worker_init_fn is None and is_tensors(dataset, collate):
        return TensorStream(place, dataset, settings.pin_memory)
    fetcher = Fetcher(dataset, collate, seed, planner.single)
    if settings.num_workers == 0:
        return IndexedStream(place, LocalFeed(fetcher, settings.pin_memory))
    return IndexedStream(place, WorkerFeed(fetcher, settings), settings.in_order)


def open_items(dataset: Iterable[Any], batching: Batching, seed: int, shard: Shard | None = None) -> Stream:
    """A stream over an iterable data set that is read in this process."""
    refusal = (
        f"A run with {type(dataset).__name__} cannot be resumed exactly: its position cannot be known. Give "
        "it `state_dict` and `load_state_dict`, or use a map-style data set."
    )
    cursor = Cursor(dataset, seed, Randomness.PER_ITEM)
    if batching.size is None:
        shard = None  # items that are batches already cannot be cut
    elif shard is not None:
        batching = replace(batching, size=batching.size * shard.scale)
    return IteratedStream(cursor, batching, refusal=refusal, length=_length_of(dataset), shard=shard)


def open_stateful(batches: Iterable[Any], seed: int) -> Stream:
    """A stream over a loader that saves its own position."""
    cursor = Cursor(batches, seed, Randomness.PER_ITEM)
    return IteratedStream(cursor, _READY, refusal="", length=_length_of(batches))


def open_iterable(batches: Iterable[Any], seed: int) -> Stream:
    """A stream over batches about which nothing is known, iterated as they are."""
    refusal = (
        f"A run with {type(batches).__name__} cannot be resumed exactly: its position cannot be known. Use a "
        "data set, a plain DataLoader with a sampler that has a length, a list of batches, or something that has "
        "`state_dict` and `load_state_dict`."
    )
    cursor = Cursor(batches, seed, Randomness.LEFT_ALONE)
    return IteratedStream(cursor, _READY, refusal=refusal, length=_length_of(batches))


def _open_iterable_loader(loader: DataLoader[Any], seed: int) -> Stream:
    name, workers = type(loader.dataset).__name__, loader.num_workers
    refusal = (
        f"A run with the iterable data set {name} read by {workers} workers cannot be resumed exactly: how "
        f"far each worker has come cannot be known. {_INSTEAD}"
    )
    samples = _length_of(loader.dataset)  # not len(loader), which makes torch warn about its own estimate
    cursor = Cursor(loader, seed, Randomness.PER_EPOCH)
    stream = IteratedStream(cursor, _READY, refusal=refusal, length=None)
    if samples is not None:
        size = loader.batch_size or 1
        stream.num_batches = samples // size if loader.drop_last else -(-samples // size)
    return stream


def _planner_of(loader: DataLoader[Any], seed: int) -> Planner | None:
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None or type(batches) is BatchSampler else batches
    if not isinstance(sampler, Sized):  # it may never end, so it cannot be drawn ahead
        return None
    order = order_of(sampler, seed)
    if batches is None:
        return Planner(order, None, drop_last=False, single=True)
    if type(batches) is BatchSampler:
        return Planner(order_of(batches.sampler, seed), batches.batch_size, drop_last=batches.drop_last)
    return Planner(order, None, drop_last=False)


def _length_of(data: object) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):  # a loader has __len__ even where its data set has none
        return None


def _as_it_is(batch: Any) -> Any:
    return batch


_READY = Batching(None, drop_last=False, collate=_as_it_is)
