"""The stream over a sequence of ready batches."""

from collections.abc import Sequence
from typing import Any

from ..errors import DataError
from .interface import Batch, Stream, batch_size_of, check_kind
from .seeding import preserved_rng

_KIND = "a sequence of batches"


class SequenceStream(Stream):
    """Batches as they are and in their order; the position is the number of batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self._epoch = self._position = 0
        self.num_batches = len(batches)
        self.num_samples = sum(map(batch_size_of, batches)) if isinstance(batches, list | tuple) else None

    def begin(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0

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

    def state_dict(self) -> dict[str, Any]:
        return {"kind": _KIND, "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, _KIND)
        if state["position"] > len(self._batches):
            raise DataError(
                f"The position to continue from is batch {state['position']}, but there are only "
                f"{len(self._batches)} batches now: resume with the same data, or start a new run."
            )
        self._epoch, self._position = state["epoch"], state["position"]

    def describe(self) -> dict[str, Any]:
        return {"length": len(self._batches)}

    def peek(self) -> list[Any] | None:
        from .peeking import NUM_SAMPLES, places

        with preserved_rng():
            try:
                return [self._batches[index] for index in places(len(self._batches), NUM_SAMPLES)]
            except Exception:  # the loop meets it again, and says where
                return None

    def check_resumable(self) -> None:
        """A position in a sequence is always known."""
