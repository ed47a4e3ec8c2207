"""What every kind of data is turned into: a stream that hands out batches and knows its position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from ..errors import DataError


class Batch(NamedTuple):
    """A batch as the model side sees it, and the number of samples in it.

    `total` counts the samples of all processes' parts together, where a batch is divided among several.
    """

    value: Any
    size: int
    total: int | None = None


@runtime_checkable
class Stateful(Protocol):
    """Something whose position can be saved and restored."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@runtime_checkable
class HasEpochs(Protocol):
    """A sampler or data set whose order depends on the epoch it is told."""

    def set_epoch(self, epoch: int) -> Any: ...


class Stream(ABC):
    """Batches of one epoch after another, from a position that is one integer.

    `num_batches` and `num_samples` describe a whole epoch and are None where that is unknown.
    """

    num_batches: int | None = None
    num_samples: int | None = None
    is_shared = False  # whether it gives this process its part of every batch of all

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Start an epoch (counted from 0) at its first batch."""

    @abstractmethod
    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        """The next at most `count` batches of this epoch; none when its data is exhausted.

        `max_samples` cuts the last batch short where samples can be told apart; streams of ready batches
        stop after the batch that reaches it.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Epoch, position, and whatever else is needed to continue exactly after the last batch given out."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, without fetching anything before that position."""

    @property
    def spans_epochs(self) -> bool:
        """Whether an epoch begins where the one before it ended, so that the position matters between epochs, too."""
        return False

    @abstractmethod
    def check_resumable(self) -> None:
        """Raise a `DataError` that says what to do instead, if the position cannot be known."""

    def describe(self) -> dict[str, Any]:
        """What makes the data another where it differs (length, batch size, order), as far as it is known."""
        return {}

    def peek(self) -> list[Any] | None:
        """A few samples at fixed places, the first of them twice, without any trace; None where that cannot be."""
        return None

    def close(self) -> None:  # noqa: B027  (most streams hold nothing that has to be ended)
        """End workers and drop iterators."""

    def __iter__(self) -> Iterator[Batch]:
        """The rest of this epoch, batch by batch."""
        while batches := self.take(1):
            yield batches[0]


class StreamAround(Stream):
    """Another stream, changed: what a subclass does not say is that stream's."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.is_shared = stream.is_shared
        self._measure()

    def begin(self, epoch: int) -> None:
        self._stream.begin(epoch)
        self._measure()

    def state_dict(self) -> dict[str, Any]:
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state)
        self._measure()

    @property
    def spans_epochs(self) -> bool:
        return self._stream.spans_epochs

    def check_resumable(self) -> None:
        self._stream.check_resumable()

    def describe(self) -> dict[str, Any]:
        return self._stream.describe()

    def peek(self) -> list[Any] | None:
        return self._stream.peek()

    def close(self) -> None:
        self._stream.close()

    def _measure(self) -> None:
        """Note the sizes of the epoch, which the stream behind may learn only when it begins."""
        self.num_batches, self.num_samples = self._stream.num_batches, self._stream.num_samples


def check_kind(state: dict[str, Any], kind: str) -> None:
    """Refuse a position in one kind of data for another."""
    if state["kind"] != kind:
        raise DataError(
            f"The position to continue from is in {state['kind']}, but the data is now {kind}: resume with the "
            "same data, or start a new run."
        )


def batch_size_of(batch: Any) -> int:
    """Number of samples in a batch: the length of the first tensor found in it, otherwise 1."""
    tensor = _first_tensor(batch)
    return tensor.shape[0] if tensor is not None and tensor.ndim else 1


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for part in batch if (found := _first_tensor(part)) is not None), None)
    return None


_KIND = "the first batches of each epoch"


class LimitedStream(StreamAround):
    """At most `limit` batches an epoch; no more than that is ever asked of the stream behind it."""

    def __init__(self, stream: Stream, limit: int) -> None:
        if limit < 1:
            raise DataError(f"LimitedStream(limit={limit}): use a number of batches, 1 or more.")
        self._limit = limit
        self._taken = 0
        super().__init__(stream)

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self._taken = 0

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        left = self._limit - self._taken
        if left <= 0:
            return []
        batches = self._stream.take(min(count, left), max_samples)
        self._taken += len(batches)
        self._measure()  # the stream behind may have learnt how long this epoch is
        return batches

    def state_dict(self) -> dict[str, Any]:
        return {"kind": _KIND, "taken": self._taken, "stream": self._stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _KIND)
        super().load_state_dict(state["stream"])
        self._taken = state["taken"]

    def _measure(self) -> None:
        """Sizes of an epoch: of data with an unknown length, only that there are no more batches than the limit."""
        whole = self._stream.num_batches
        self.num_batches = None if whole is None else min(whole, self._limit)
        self.num_samples = self._stream.num_samples if whole is not None and whole <= self._limit else None


class SkippingStream(StreamAround):
    """Leaves out batches of the current epoch by their number; windows are filled up with those that follow.

    Its state is that of the stream behind it with two entries more, so that a run may be resumed with or without it.
    """

    def __init__(self, stream: Stream) -> None:
        self._num_read = 0
        self._is_counted = True
        self._sizes: dict[int, int] = {}  # of the batches in the last window
        self.skipped: dict[int, int] = {}  # number in the epoch, from 0: number of samples
        super().__init__(stream)

    def skip(self, skipped: Mapping[int, int]) -> None:
        """Leave out these batches: their numbers in the epoch, with their sizes."""
        self.skipped |= skipped
        self._measure()

    def with_kept(self, kept: int) -> dict[int, int]:
        """What is left out, with the batch of the last window that was the `kept`-th (from 0) to be given out."""
        number = kept
        for skipped in sorted(self.skipped):
            number += skipped <= number
        return self.skipped | {number: self._sizes[number]}

    def count_from(self, kept: int) -> None:
        """Say how many batches of this epoch were given out, where the state that was loaded did not."""
        if not self._is_counted:
            self._num_read, self._is_counted = kept, True

    def begin(self, epoch: int) -> None:
        self._num_read, self._is_counted, self.skipped = 0, True, {}
        super().begin(epoch)

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        self._sizes = {}
        if not self.skipped:
            return self._read(count, max_samples)
        kept: list[Batch] = []
        left = max_samples
        while len(kept) < count and (left is None or left > 0) and (read := self._read(1, left)):
            number = self._num_read - 1
            if number not in self.skipped:
                kept += read
                left = None if left is None else left - self._sizes[number]
        return kept

    def state_dict(self) -> dict[str, Any]:
        own = {"num_read": self._num_read, "skipped": [list(pair) for pair in sorted(self.skipped.items())]}
        return self._stream.state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_counted = "num_read" in state
        self._num_read = state.get("num_read", 0)
        self.skipped = dict(state.get("skipped", ()))
        super().load_state_dict(state)

    def _read(self, count: int, max_samples: int | None) -> list[Batch]:
        batches = self._stream.take(count, max_samples)
        for batch in batches:
            self._sizes[self._num_read] = batch.size if batch.total is None else batch.total
            self._num_read += 1
        return batches

    def _measure(self) -> None:
        """Sizes of the epoch without what is left out."""
        batches, samples = self._stream.num_batches, self._stream.num_samples
        self.num_batches = None if batches is None else batches - len(self.skipped)
        self.num_samples = None if samples is None else samples - sum(self.skipped.values())
