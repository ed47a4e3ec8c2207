"""What every kind of data is turned into: a stream that hands out batches and knows its position."""

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
