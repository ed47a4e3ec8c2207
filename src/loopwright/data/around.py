"""What streams that change another stream have in common."""

from __future__ import annotations

from typing import Any

from .interface import Stream


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

    def close(self) -> None:
        self._stream.close()

    def _measure(self) -> None:
        """Note the sizes of the epoch, which the stream behind may learn only when it begins."""
        self.num_batches, self.num_samples = self._stream.num_batches, self._stream.num_samples
