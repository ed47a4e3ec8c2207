"""Data parallelism: the part of each global batch that this process gets.

A batch is a global batch, over all processes: another world size changes neither the order of
samples nor the mathematics, only the rank that computes a sample. A rank without samples in a small
last batch gets a sample of another rank with a size of 0, so that all ranks take part in every
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .stream import Batch, Stream, StreamWrapper


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank and world size; with `is_per_process`, batch sizes are those of one process, not of the
    global batch."""

    rank: int = 0
    world: int = 1
    is_per_process: bool = False

    @property
    def scale(self) -> int:
        """The size of the global batch divided by the given batch size."""
        return self.world if self.is_per_process else 1

    def size(self, total: int) -> int:
        """Return the number of samples that this process has in a global batch of `total`
        samples."""
        return (self.rank + 1) * total // self.world - self.rank * total // self.world

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """Return start and end of this rank's part of a batch, or of the first sample where the
        part is empty."""
        total = stop - start
        first = start + self.rank * total // self.world
        last = start + (self.rank + 1) * total // self.world
        return (first, last) if first < last else (start, start + 1)


class ShardedBatches(StreamWrapper):
    """A stream of ready batches, distributed over the ranks: of each `world` consecutive batches,
    each rank gets one.

    Ready batches cannot be divided, so each process reads all of them and keeps its own. The
    position is the wrapped stream's, which is the same for every world size.
    """

    def __init__(self, stream: Stream, shard: Shard) -> None:
        self._shard = shard
        super().__init__(stream)
        self.is_shared = True

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        batches: list[Batch] = []
        while len(batches) < count and (max_samples is None or max_samples > 0):
            group = self._stream.take(self._shard.world, max_samples)
            if not group:
                break
            batches.append(self._own(group))
            if max_samples is not None:
                max_samples -= sum(batch.size for batch in group)
        return batches

    def _own(self, group: Sequence[Batch]) -> Batch:
        total = sum(batch.size for batch in group)
        if self._shard.rank < len(group):
            own = group[self._shard.rank]
            return Batch(own.value, own.size, total)
        return Batch(group[0].value, 0, total)

    def _update_sizes(self) -> None:
        whole = self._stream.num_batches
        self.num_batches = None if whole is None else -(-whole // self._shard.world)
        self.num_samples = self._stream.num_samples


class AlreadySharded(StreamWrapper):
    """A stream over data that the user sharded already, for example with a `DistributedSampler`."""

    def __init__(self, stream: Stream, world: int) -> None:
        self._world = world
        super().__init__(stream)
        self.is_shared = True

    def _update_sizes(self) -> None:
        """Update the sizes of the epoch; every process has the same number of samples."""
        own = self._stream.num_samples
        self.num_batches = self._stream.num_batches
        self.num_samples = None if own is None else own * self._world

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        own = self._own_samples(max_samples)
        return [
            Batch(batch.value, batch.size, batch.size * self._world)
            for batch in self._stream.take(count, own)
        ]

    def upcoming(self, max_samples: int | None = None) -> Any:
        return self._stream.upcoming(self._own_samples(max_samples))

    def _own_samples(self, max_samples: int | None) -> int | None:
        return None if max_samples is None else -(-max_samples // self._world)
