"""The first batches of every epoch of another stream."""

from typing import Any

from ..errors import DataError
from .interface import Batch, Stream, StreamAround, check_kind

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
