"""Streams over data that is iterated: iterable data sets, stateful loaders, iterables and lists of
batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._torch_compat import pin_memory
from ..errors import DataError
from .fetch import NUM_SAMPLES, Collate, can_pin, spread_indices
from .random import preserved_rng
from .sharding import Shard
from .stream import Batch, Stream, batch_size_of, check_kind

if TYPE_CHECKING:
    from .cursor import Cursor

KIND = "an iterable"


@dataclass(frozen=True, slots=True)
class Batching:
    """How items become batches; with `size=None` every item is a ready batch."""

    size: int | None
    drop_last: bool
    collate: Collate
    pin_memory: bool = False


class IteratedStream(Stream):
    """Batches read from an iterable; the position is the number of items read."""

    def __init__(
        self,
        cursor: Cursor,
        batching: Batching,
        *,
        length: int | None,
        shard: Shard | None = None,
    ) -> None:
        self._shard = shard  # every process reads all items and collates its part
        self.is_shared = shard is not None
        self._cursor = cursor
        self._batching = batching
        self._pins = batching.pin_memory and can_pin()
        self._epoch = 0
        self._position = 0
        self.num_batches = self._length = length
        if length is not None and batching.size is not None:
            self.num_samples = length - length % batching.size if batching.drop_last else length
            self.num_batches = -(-self.num_samples // batching.size)

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._cursor.start(epoch)

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        batches: list[Batch] = []
        left = max_samples
        with self._cursor.preserved_generators():
            while len(batches) < count and (left is None or left > 0):
                if (batch := self._next_batch(left)) is None:
                    break
                left = None if left is None else left - batch.counted
                batches.append(batch)
        return batches

    def state_dict(self) -> dict[str, Any]:
        state = {"kind": KIND, "epoch": self._epoch, "position": self._position}
        return state | self._cursor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, KIND, self._length)
        if state["position"] and not state["is_exhausted"]:
            self.check_resumable()
        self.begin(state["epoch"])
        self._cursor.load_state_dict(state)
        self._position = state["position"]

    @property
    def spans_epochs(self) -> bool:
        return self._cursor.spans_epochs

    @property
    def remark(self) -> str | None:
        return self._cursor.remark

    def check_resumable(self) -> None:
        if not self._cursor.has_position():
            raise DataError(
                "position-unknown",
                f"A run with {type(self._cursor.source).__name__} cannot be resumed exactly: its "
                "position is not known. Use a map-style data set, a plain DataLoader with "
                "num_workers=0, a list of batches, or data or a loader that has `state_dict` and "
                "`load_state_dict` (such as torchdata's StatefulDataLoader), or `get_state` and "
                "`set_state`. Its iterators may have these methods instead.",
            )

    def describe(self) -> dict[str, Any]:
        return {
            "length": self._length,
            "batch_size": self._batching.size,
            "drop_last": self._batching.drop_last,
        }

    def close(self) -> None:
        self._cursor.close()

    def _next_batch(self, left: int | None) -> Batch | None:
        size = self._batching.size
        items = self._read(1 if size is None else size - self._position % size, left)
        if not items:
            return None
        self._position += len(items)
        total = len(items)
        own = len(items)
        if self._shard is not None:
            first, last = self._shard.part(0, total)
            items = items[first:last]
            own = self._shard.size(total)
        value = self._batching.collate(items[0] if size is None else items)
        if self._pins:
            value = pin_memory(value)
        return Batch(
            value,
            batch_size_of(value) if size is None else own,
            None if self._shard is None else total,
        )

    def _read(self, wanted: int, left: int | None) -> list[Any]:
        items: list[Any] = []
        allowed = wanted if left is None else min(wanted, left)
        while len(items) < allowed and (item := self._cursor.read(self._position + len(items))):
            items += item
        is_short = len(items) < allowed
        return [] if is_short and self._batching.drop_last else items


_SEQUENCE_KIND = "a sequence of batches"


class SequenceStream(Stream):
    """Batches of a list or another sequence, in its order; the position is the number of
    batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self._epoch = 0
        self._position = 0
        self.num_batches = len(batches)
        self.num_samples = (
            sum(map(batch_size_of, batches)) if isinstance(batches, list | tuple) else None
        )

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        batches: list[Batch] = []
        left = max_samples
        position = self._position
        while len(batches) < count and position < len(self._batches) and (left is None or left > 0):
            value = self._batches[position]
            batches.append(Batch(value, batch_size_of(value)))
            position += 1
            left = None if left is None else left - batches[-1].size
        self._position = position
        return batches

    def upcoming(self, max_samples: int | None = None) -> Any:
        is_plain = type(self._batches) in (list, tuple)
        return (
            self._batches[self._position]
            if is_plain and self._position < len(self._batches)
            else None
        )

    def state_dict(self) -> dict[str, Any]:
        return {"kind": _SEQUENCE_KIND, "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _SEQUENCE_KIND, len(self._batches))
        self._epoch = state["epoch"]
        self._position = state["position"]

    def describe(self) -> dict[str, Any]:
        return {"length": len(self._batches)}

    def peek(self) -> list[Any] | None:
        with preserved_rng():
            try:
                return [
                    self._batches[index]
                    for index in spread_indices(len(self._batches), NUM_SAMPLES)
                ]
            except Exception:  # training raises it again, with the batch that causes it
                return None

    def check_resumable(self) -> None:
        """A position in a sequence is always known."""
