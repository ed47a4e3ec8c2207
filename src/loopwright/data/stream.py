"""Streams: the interface of all training data. A stream yields batches and knows its position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from ..errors import DataError, WaitInterrupted, check_number
from .containers import tensors_in

# bytes of a tensor that workers send by value: at 1 MB shared memory is as fast, at 3 MB faster
MAX_BY_VALUE = 1 << 19


class Batch(NamedTuple):
    """A batch as `train_step` gets it, and the number of samples in it.

    `total` is the number of samples of the global batch, where the batch is sharded over several
    processes.
    """

    value: Any
    size: int
    total: int | None = None

    @property
    def counted(self) -> int:
        """The number of samples that progress counts: those of the global batch."""
        return self.size if self.total is None else self.total


@runtime_checkable
class Stateful(Protocol):
    """An object whose state can be saved and restored, such as a sampler, a data set or a
    loader."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@runtime_checkable
class HasEpochs(Protocol):
    """A sampler or data set whose order depends on the epoch set by `set_epoch`."""

    def set_epoch(self, epoch: int) -> Any: ...


F = TypeVar("F", bound=Callable[..., Any])
WAITS: set[CodeType] = set()  # functions that wait for data
# functions in which a signal may end a wait: `WaitInterrupted` is handled
MAY_BE_LEFT: set[CodeType] = set()


def waits_for_data(function: F) -> F:
    """Mark a function that waits for data, so that a long wait is reported."""
    WAITS.add(function.__code__)
    return function


def may_be_left(function: F) -> F:
    """Mark a function in which a signal may end a wait for data."""
    MAY_BE_LEFT.add(function.__code__)
    return function


class Wait(Protocol):
    """What ends a wait for data, by `WaitInterrupted`."""

    has_raised: bool  # in the user's data set
    is_leaving: (
        bool  # whether a signal ends the program, so that a worker that hangs is not waited for
    )

    def is_asked(self) -> bool: ...


class Stream(ABC):
    """Batches of one epoch after another, from a position that is one integer.

    `num_batches` and `num_samples` describe a whole epoch and are None where that is unknown.
    """

    num_batches: int | None = None
    num_samples: int | None = None
    is_shared = (
        False  # whether batches are sharded: this process gets its part of each global batch
    )
    pin_memory: bool | None = None  # what a loader says; None for data without a loader

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Start an epoch (counted from 0) at its first batch."""

    @abstractmethod
    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        """Return the next batches of this epoch, at most `count`; an empty list when its data is
        exhausted.

        With `max_samples`, a stream that builds batches from samples shortens the last one; a
        stream of ready batches stops after the batch that reaches this number.
        """

    @property
    def remark(self) -> str | None:
        """What is to be printed about the way in which a position was restored."""
        return None

    def upcoming(self, max_samples: int | None = None) -> Any:
        """Return the value of the batch that `take(..., max_samples)` returns next, without any
        effect on the position.

        It is read in advance only where this cannot be noticed: from tensors, from workers, which
        read in advance anyway, and not from the user's objects in this process, which may depend on
        training. Otherwise it is None, as at the end of an epoch.
        """
        return None

    # for streams whose position such an end does not move
    def leave_when(self, wait: Wait) -> None:  # noqa: B027
        """Let `take` raise `WaitInterrupted` once this is asked for; no batch then counts as
        taken."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return epoch, position and all other state that is needed to continue exactly after the
        last batch taken."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, without fetching anything before that position."""

    @property
    def spans_epochs(self) -> bool:
        """Whether an epoch begins where the previous one ended, so that the position matters
        between epochs, too."""
        return False

    @abstractmethod
    def check_resumable(self) -> None:
        """Raise a `DataError` that says what to do instead, if the position cannot be known."""

    def describe(self) -> dict[str, Any]:
        """Return properties that identify the data in a run's fingerprint: length, batch size,
        order, where known."""
        return {}

    def peek(self) -> list[Any] | None:
        """Return a few samples at fixed indices, the first one twice, and change no state; None
        where impossible."""
        return None

    def close(self) -> None:  # noqa: B027  (most streams hold no resources)
        """Stop worker processes and drop iterators."""

    @waits_for_data
    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the remaining batches of this epoch."""
        while batches := self.take(1):
            yield batches[0]


class StreamWrapper(Stream):
    """A stream that wraps another one and forwards every method that a subclass does not
    override."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.is_shared = stream.is_shared
        self.pin_memory = stream.pin_memory
        self._update_sizes()

    def begin(self, epoch: int) -> None:
        self._stream.begin(epoch)
        self._update_sizes()

    def leave_when(self, wait: Wait) -> None:
        self._stream.leave_when(wait)

    def state_dict(self) -> dict[str, Any]:
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state)
        self._update_sizes()

    @property
    def spans_epochs(self) -> bool:
        return self._stream.spans_epochs

    @property
    def remark(self) -> str | None:
        return self._stream.remark

    def check_resumable(self) -> None:
        self._stream.check_resumable()

    def describe(self) -> dict[str, Any]:
        return self._stream.describe()

    def peek(self) -> list[Any] | None:
        return self._stream.peek()

    def close(self) -> None:
        self._stream.close()

    def _update_sizes(self) -> None:
        """Update the sizes of the epoch, which the wrapped stream may know only after the epoch has
        begun."""
        self.num_batches = self._stream.num_batches
        self.num_samples = self._stream.num_samples


class ReadAhead(Iterator[Batch]):
    """Batches of a function, the next of which can be looked at; what goes wrong then is raised
    when it is taken.

    The position of a stream counts the batches that were taken, so looking has no effect on it.

    >>> numbers = iter([Batch("a", 1), Batch("b", 1)])
    >>> batches = ReadAhead(numbers.__next__)
    >>> batches.peek().value, next(batches).value, next(batches).value, batches.peek()
    ('a', 'a', 'b', None)
    """

    def __init__(self, read: Callable[[], Batch]) -> None:
        self._read = read
        self._held: Batch | None = None
        self._error: Exception | WaitInterrupted | None = None

    def __next__(self) -> Batch:
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
        held = self._held
        self._held = None
        return self._read() if held is None else held

    def peek(self) -> Batch | None:
        """Return the next batch, which stays the next one; None where there is none, or reading it
        failed."""
        if self._held is None and self._error is None:
            try:
                self._held = self._read()
            except (
                Exception,
                WaitInterrupted,
            ) as error:  # StopIteration at the end of an epoch, or that of the user's data
                self._error = error
        return self._held


def check_kind(state: dict[str, Any], kind: str, length: int | None = None) -> None:
    """Raise a `DataError` if a saved position belongs to another kind of data, or lies beyond its
    end."""
    if state["kind"] != kind:
        raise DataError(
            "other-kind-of-data",
            f"The saved position is in {state['kind']}, but the data is now {kind}: resume with "
            "the same data, or start a new run.",
        )
    if length is not None and state["position"] > length:
        raise DataError(
            "data-got-shorter",
            f"The saved position is {state['position']}, but the data has only {length} entries "
            "now: resume with the same data, or start a new run.",
        )


def batch_size_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of the first tensor found in it,
    otherwise 1."""
    tensor = next(tensors_in(batch), None)
    return tensor.shape[0] if tensor is not None and tensor.ndim else 1


_KIND = "the first batches of each epoch"


class LimitedStream(StreamWrapper):
    """The first `limit` batches of each epoch; no more are read from the wrapped stream."""

    def __init__(self, stream: Stream, limit: int) -> None:
        check_number("LimitedStream(limit", limit, least=1, of="batches")
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
        self._update_sizes()  # the wrapped stream may know the length of this epoch only now
        return batches

    def upcoming(self, max_samples: int | None = None) -> Any:
        return self._stream.upcoming(max_samples) if self._taken < self._limit else None

    def state_dict(self) -> dict[str, Any]:
        return {"kind": _KIND, "taken": self._taken, "stream": self._stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _KIND)
        super().load_state_dict(state["stream"])
        self._taken = state["taken"]

    def _update_sizes(self) -> None:
        """Update the sizes of the epoch; they stay unknown for data of unknown length."""
        whole = self._stream.num_batches
        self.num_batches = None if whole is None else min(whole, self._limit)
        self.num_samples = (
            self._stream.num_samples if whole is not None and whole <= self._limit else None
        )


class SkippingStream(StreamWrapper):
    """Skips batches of the current epoch by number; accumulation windows are filled up with the
    next batches.

    Its state is the wrapped stream's state with two more entries, so that a run may be resumed with
    or without it.
    """

    def __init__(self, stream: Stream) -> None:
        self._num_read = 0
        self._is_counted = True
        self._sizes: dict[int, int] = {}  # of the batches in the last window
        self.skipped: dict[int, int] = {}  # number in the epoch, from 0: number of samples
        super().__init__(stream)

    def skip(self, skipped: Mapping[int, int]) -> None:
        """Skip these batches as well: a mapping from number in the epoch to number of samples."""
        self.skipped |= skipped
        self._update_sizes()

    def skipped_with(self, kept: int) -> dict[int, int]:
        """Return the skipped batches and one batch of the last window: number `kept` (from 0) of
        the kept batches."""
        number = kept
        for skipped in sorted(self.skipped):
            number += skipped <= number
        return self.skipped | {number: self._sizes[number]}

    def count_from(self, kept: int) -> None:
        """Set the number of batches read in this epoch, if the loaded state did not contain it."""
        if not self._is_counted:
            self._num_read = kept
            self._is_counted = True

    def begin(self, epoch: int) -> None:
        self._num_read = 0
        self._is_counted = True
        self.skipped = {}
        super().begin(epoch)

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        self._sizes = {}
        if not self.skipped:
            return self._read(count, max_samples)
        start = self.state_dict()
        try:
            return self._take_others(count, max_samples)
        except WaitInterrupted:  # after batches of the window that were read
            self.load_state_dict(start)
            raise

    def _take_others(self, count: int, left: int | None) -> list[Batch]:
        kept: list[Batch] = []
        while len(kept) < count and (left is None or left > 0) and (read := self._read(1, left)):
            number = self._num_read - 1
            if number not in self.skipped:
                kept += read
                left = None if left is None else left - self._sizes[number]
        return kept

    def upcoming(self, max_samples: int | None = None) -> Any:
        return None if self._num_read in self.skipped else self._stream.upcoming(max_samples)

    def state_dict(self) -> dict[str, Any]:
        own = {
            "num_read": self._num_read,
            "skipped": [list(pair) for pair in sorted(self.skipped.items())],
        }
        return self._stream.state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_counted = "num_read" in state
        self._num_read = state.get("num_read", 0)
        self.skipped = dict(state.get("skipped", ()))
        super().load_state_dict(state)

    def _read(self, count: int, max_samples: int | None) -> list[Batch]:
        batches = self._stream.take(count, max_samples)
        for batch in batches:
            self._sizes[self._num_read] = batch.counted
            self._num_read += 1
        return batches

    def _update_sizes(self) -> None:
        """Update the sizes of the epoch, without the skipped batches."""
        batches = self._stream.num_batches
        samples = self._stream.num_samples
        self.num_batches = None if batches is None else batches - len(self.skipped)
        self.num_samples = None if samples is None else samples - sum(self.skipped.values())
