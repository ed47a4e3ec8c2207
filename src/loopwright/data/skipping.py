"""Another stream without the batches that turned out to be bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .interface import Batch, Stream, StreamAround


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
