"""Streams over map-style data sets: the order is known, so a position is one integer and seeking is
O(1)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from typing import Any

from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from .._torch_compat import collates_as_torch, pin_memory
from ..errors import DataError
from .columns import as_indices, is_plain_tensor, not_negative
from .fetch import (
    NUM_ROWS,
    BatchSource,
    Fetcher,
    Request,
    can_pin,
    peek_samples,
    spread_indices,
)
from .order import BatchPlan, EpochPlan, EvenBatches, spans_from
from .sharding import Shard
from .stream import Batch, ReadAhead, Stateful, Stream, Wait, check_kind

_KIND = "a map-style data set"


class Position:
    """The position in a map-style data set: epoch, offset in the epoch, and the batch plan they
    refer to.

    The offset counts samples; it counts batches where an index is one ready batch.
    """

    def __init__(self, batch_plan: BatchPlan, seed: int, shard: Shard | None = None) -> None:
        self.batch_plan = batch_plan
        self.shard = shard
        self.epoch = 0
        self.offset = 0
        self._seed = seed
        self._plan: EpochPlan | None = None
        self._sampler_state: dict[str, Any] | None = None

    @property
    def epoch_plan(self) -> EpochPlan:
        """The batches of the current epoch, drawn on first use."""
        if self._plan is None:
            sampler = self.batch_plan.order.sampler
            if isinstance(sampler, Stateful):  # the state before this epoch is drawn
                self._sampler_state = deepcopy(sampler.state_dict())
            self._plan = self.batch_plan.for_epoch(self.epoch)
        return self._plan

    def move(self, epoch: int, position: int = 0) -> None:
        self.epoch = epoch
        self.offset = position
        self._plan = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the numbers by which other data or another order is noticed.

        The state of a sampler is saved twice: from before this epoch was drawn (if it was), and the
        current state, which drawing this epoch changed and which the user may have changed since.
        """
        sampler = self.batch_plan.order.sampler
        now = deepcopy(sampler.state_dict()) if isinstance(sampler, Stateful) else None
        is_drawn = self._plan is not None or now is None
        state = {"kind": _KIND, "epoch": self.epoch, "position": self.offset, "seed": self._seed}
        state["num_samples"] = self.epoch_plan.num_samples if is_drawn else None
        return state | {"sampler": self._sampler_state if is_drawn else None, "sampler_now": now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _KIND)
        self.move(state["epoch"], state["position"])
        sampler = self.batch_plan.order.sampler
        if isinstance(sampler, Stateful):
            self._load_sampler(sampler, state)
        if self.offset:
            self._check_same_order(state)

    def _load_sampler(self, sampler: Stateful, state: dict[str, Any]) -> None:
        if state["sampler"] is not None:
            sampler.load_state_dict(deepcopy(state["sampler"]))
            self._sampler_state = state["sampler"]
            self._plan = self.batch_plan.for_epoch(self.epoch)
        if state.get("sampler_now") is not None:  # runs of earlier versions do not have it
            sampler.load_state_dict(deepcopy(state["sampler_now"]))

    def _check_same_order(self, state: dict[str, Any]) -> None:
        if state["seed"] != self._seed:
            raise DataError(
                "seed-differs",
                f"The position to continue from was saved with seed {state['seed']}, but the seed "
                f"is now {self._seed}, which gives another order: use seed={state['seed']}, or "
                "start a new run.",
            )
        if state["num_samples"] != self.epoch_plan.num_samples:
            raise DataError(
                "data-size-differs",
                f"The data position was saved in an epoch of {state['num_samples']} samples, but "
                f"the data now has {self.epoch_plan.num_samples}: resume with the same data, or "
                "start a new run.",
            )


class PositionedStream(Stream):
    """A stream whose state is a `Position`."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self.is_shared = position.shard is not None
        self.num_batches, self.num_samples = position.batch_plan.sizes()

    def begin(self, epoch: int) -> None:
        self._position.move(epoch)
        self._start()

    @abstractmethod
    def _start(self) -> Any:
        """Begin to read at the position."""

    def state_dict(self) -> dict[str, Any]:
        return self._position.state_dict()

    @property
    def spans_epochs(self) -> bool:
        """Whether the order of an epoch may depend on earlier epochs, through a sampler with
        state."""
        return isinstance(self._position.batch_plan.order.sampler, Stateful)

    def check_resumable(self) -> None:
        if name := self._position.batch_plan.order.hidden_state():
            raise DataError(
                "order-not-resumable",
                f"A run with {name} cannot be resumed exactly: its order may depend on state that "
                "is not saved. Add `set_epoch(epoch)` and let the order depend only on the "
                "epoch, or add `state_dict` and `load_state_dict`, or use shuffle=True.",
            )


class IndexedStream(PositionedStream):
    """Batches of a map-style data set, fetched by a batch source: this process or workers."""

    def __init__(
        self,
        position: Position,
        source: BatchSource,
        in_order: bool = True,
        *,
        reads_ahead: bool = False,
    ) -> None:
        super().__init__(position)
        self._source = source
        self._in_order = in_order
        self._reads_ahead = reads_ahead  # whether reading a batch in advance cannot be noticed
        self._ahead: ReadAhead | None = None
        self._is_started = False

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        if not self._is_started:
            self._start()
        batches: list[Batch] = []
        position = self._position.offset
        left = max_samples
        while len(batches) < count and (left is None or left > 0):
            batch = self._next(position, left)
            if batch is None:
                break
            batches.append(batch)
            # as `batch.counted`, without a call in every step
            total = batch.size if batch.total is None else batch.total
            position += 1 if self._position.batch_plan.index_is_batch else total
            left = None if left is None else left - total
        self._position.offset = position  # only now: after an exception no batch counts as taken
        return batches

    def leave_when(self, wait: Wait) -> None:
        self._source.wait = wait

    def upcoming(self, max_samples: int | None = None) -> Any:
        if not (self._reads_ahead and self._is_started):
            return None
        start, stop = self._position.epoch_plan.span(self._position.offset)
        if start == stop or (max_samples is not None and stop - start > max_samples):
            return None
        self._ahead = self._ahead or ReadAhead(self._source.next)
        return None if (batch := self._ahead.peek()) is None else batch.value

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position.load_state_dict(state)
        # no epoch was drawn yet, and drawing one changes a stateful sampler
        if state["num_samples"] is None:
            self._is_started = False
        else:
            self._start()

    def check_resumable(self) -> None:
        super().check_resumable()
        if not self._in_order:
            raise DataError(
                "order-not-resumable",
                "A run whose DataLoader has in_order=False cannot be resumed exactly: it is not "
                "known which batches have been used. Keep in_order=True.",
            )

    def describe(self) -> dict[str, Any]:
        return self._source.fetcher.describe() | self._position.batch_plan.describe()

    def peek(self) -> list[Any] | None:
        return peek_samples(self._source.fetcher)

    def close(self) -> None:
        self._source.close()
        self._is_started = False
        self._ahead = None

    def _start(self) -> None:
        plan = self._position.epoch_plan
        self.num_batches = plan.num_batches
        self.num_samples = None if self._position.batch_plan.index_is_batch else plan.num_samples
        self._restart(self._requests(self._position.offset))
        self._is_started = True

    def _restart(self, requests: Iterator[Request]) -> None:
        self._ahead = None
        self._source.start(self._position.epoch, requests)

    def _next(self, position: int, limit: int | None) -> Batch | None:
        start, stop = self._position.epoch_plan.span(position)
        if start == stop:  # end of the epoch: its workers end
            self._restart(iter(()))
            return None
        # a shorter batch than the source was asked for
        if limit is not None and stop - start > limit:
            self._restart(self._requests(position, limit))
        batch = self._source.next() if self._ahead is None else next(self._ahead)
        if (shard := self._position.shard) is None:
            return batch
        total = min(stop - start, stop - start if limit is None else limit)
        return Batch(batch.value, shard.size(total), total)

    def _requests(self, position: int, limit: int | None = None) -> Iterator[Request]:
        plan = self._position.epoch_plan
        epoch = self._position.epoch
        shard = self._position.shard
        for start, stop in spans_from(plan, position, limit):
            if shard is not None:
                start, stop = shard.part(start, stop)
            yield Request(epoch, plan.indices(start, stop))


_BLOCK = 512  # batches whose indices are split in one call: cheap per batch, no noticeable delay


class TensorStream(PositionedStream):
    """Batches selected from tensors, arrays and lists directly: no samples, no collation."""

    def __init__(self, position: Position, dataset: Any, pin_memory: bool = False) -> None:
        super().__init__(position)
        self._dataset = dataset
        self._pins = pin_memory and can_pin()
        self._batches: Iterator[Batch] | None = None

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        if max_samples is not None:
            return self._take_limited(count, max_samples)
        source = self._batches or self._start()
        if count == 1:
            for batch in source:
                # as `batch.counted`, without a call in every step
                self._position.offset += batch.size if batch.total is None else batch.total
                return [batch]
        batches = list(islice(source, count))
        for batch in batches:
            self._position.offset += batch.counted
        return batches

    def upcoming(self, max_samples: int | None = None) -> Any:
        start, stop = self._position.epoch_plan.span(self._position.offset)
        is_cut = max_samples is not None and stop - start > max_samples
        if self._batches is None or start == stop or is_cut:
            return None
        if not isinstance(self._batches, ReadAhead):
            self._batches = ReadAhead(self._batches.__next__)
        return None if (batch := self._batches.peek()) is None else batch.value

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position.load_state_dict(state)
        self._batches = None  # restarts at the position with the next batch
        # otherwise no epoch was drawn yet, and drawing changes a stateful sampler
        if state["num_samples"] is not None:
            self._start()

    def describe(self) -> dict[str, Any]:
        return {"length": len(self._dataset)} | self._position.batch_plan.describe()

    def peek(self) -> list[Any] | None:
        if not is_tensors(self._dataset):
            return peek_samples(Fetcher(self._dataset, default_collate, 0))
        return [self._dataset[index] for index in spread_indices(len(self._dataset), NUM_ROWS)]

    def close(self) -> None:
        self._batches = None

    def _take_limited(self, count: int, left: int) -> list[Batch]:
        batches: list[Batch] = []
        while len(batches) < count and left > 0:
            start, stop = self._position.epoch_plan.span(self._position.offset)
            if stop - start > left:
                self._start(limit=left)
            if not (taken := self.take(1)):
                break
            left -= taken[0].counted
            batches += taken
        return batches

    def _start(self, limit: int | None = None) -> Iterator[Batch]:
        plan = self._position.epoch_plan
        assert isinstance(plan, EvenBatches)
        self.num_batches = plan.num_batches
        self.num_samples = plan.num_samples
        batches = chain.from_iterable(self._blocks(plan, self._position.offset, limit))
        self._batches = map(_pinned, batches) if self._pins else batches
        return self._batches

    def _blocks(
        self, plan: EvenBatches, position: int, limit: int | None
    ) -> Iterator[Iterator[Batch]]:
        cut = self._cutter(plan.order)
        # the rest of a batch first, then blocks of whole batches
        while position < plan.num_samples:
            start, stop = plan.span(position)
            if limit is not None:
                stop = min(stop, start + limit)
                limit = None
            if stop % plan.batch_size == 0 and start % plan.batch_size == 0:
                stop = min(start + _BLOCK * plan.batch_size, plan.num_samples)
            yield cut((start, stop), plan.batch_size, self._position.shard)
            position = stop

    def _cutter(
        self, order: Any
    ) -> Callable[[tuple[int, int], int, Shard | None], Iterator[Batch]]:
        """Return the function that yields the batches of a span of the order."""
        if is_tensors(self._dataset):
            tensors, order = _resolve(self._dataset, order)
            if isinstance(order, range):
                return partial(copies, tensors)
            return partial(rows, tensors, order)
        from .columnar import columns_of

        columns = columns_of(self._dataset)
        assert columns is not None  # as `is_tensor_data` found
        return partial(selections, columns.select, not_negative(order, columns.length))


def is_tensor_data(dataset: Any, collate: Any, num_workers: int = 0) -> bool:
    """Whether selecting from the columns of a data set gives exactly the batches of fetching and
    collating samples.

    Tensors in memory need no workers; memory-mapped files and lists are read by the workers that
    the user asked for.
    """
    if collate is not default_collate or not collates_as_torch():
        return False
    if is_tensors(dataset):
        return True
    from .columnar import columns_of, is_mapped

    columns = columns_of(dataset)
    if columns is None or not num_workers:
        return columns is not None
    return not (columns.has_lists or is_mapped(dataset))


def is_tensors(dataset: Any) -> bool:
    """Whether it is a `TensorDataset`, or subsets around one, of plain tensors on one device."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset:
        return False
    return (
        all(map(is_plain_tensor, dataset.tensors))
        and len({tensor.device for tensor in dataset.tensors}) == 1
    )


def _resolve(dataset: Any, order: Any) -> tuple[tuple[Tensor, ...], Any]:
    """Return the tensors inside nested subsets, and the order as indices into them (a range if
    sequential)."""
    while type(dataset) is Subset:
        chosen = as_indices(dataset.indices)
        order = chosen if isinstance(order, range) else chosen[as_indices(order)]
        dataset = dataset.dataset
    if isinstance(order, range):
        return dataset.tensors, order
    return dataset.tensors, not_negative(order, len(dataset)).to(dataset.tensors[0].device)


def _pinned(batch: Batch) -> Batch:
    return Batch(pin_memory(batch.value), batch.size, batch.total)


def rows(
    tensors: tuple[Tensor, ...],
    order: Tensor,
    span: tuple[int, int],
    batch_size: int,
    shard: Shard | None,
) -> Iterator[Batch]:
    """Yield the batches of some rows of tensors, selected by index; `selections` would cost a call
    more in each step."""
    select = [tensor.index_select for tensor in tensors]
    if shard is not None:
        yield from selections(
            lambda indices: [of(0, indices) for of in select], order, span, batch_size, shard
        )
        return
    for indices in _split(order, span, batch_size):
        yield Batch([of(0, indices) for of in select], indices.shape[0])


def selections(
    select: Callable[[Tensor], Any],
    order: Tensor,
    span: tuple[int, int],
    batch_size: int,
    shard: Shard | None,
) -> Iterator[Batch]:
    """Yield the batches that `select` returns for the indices of each."""
    for indices in _split(order, span, batch_size):
        if shard is None:
            yield Batch(select(indices), indices.shape[0])
        else:
            total = indices.shape[0]
            first, last = shard.part(0, total)
            yield Batch(select(indices[first:last]), shard.size(total), total)


def copies(
    tensors: tuple[Tensor, ...], span: tuple[int, int], batch_size: int, shard: Shard | None
) -> Iterator[Batch]:
    """Yield the batches of consecutive rows of tensors, as copies."""
    parts = [_split(tensor, span, batch_size) for tensor in tensors]
    for views in zip(*parts, strict=True):  # views of the data set's memory: batches are copies
        if shard is None:
            yield Batch([view.clone() for view in views], views[0].shape[0])
        else:
            total = views[0].shape[0]
            first, last = shard.part(0, total)
            yield Batch([view[first:last].clone() for view in views], shard.size(total), total)


def _split(tensor: Tensor, span: tuple[int, int], size: int) -> tuple[Tensor, ...]:
    views: tuple[Tensor, ...] = tensor[span[0] : span[1]].split(size)  # type: ignore[no-untyped-call]
    return views
