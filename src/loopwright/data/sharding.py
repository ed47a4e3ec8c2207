"""Which part of every batch is this process's, when several train together.

A batch is one batch for all processes together: moving a run to another number of them changes neither the order of
samples nor the mathematics, only who computes what. A process that gets no sample of a small last batch gets one of
the others' with a size of 0, so that all take part in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .stream import Batch, Stream, StreamAround


@dataclass(frozen=True, slots=True)
class Shard:
    """One process of several; `is_per_process` says that batch sizes are those of each, not of all together."""

    rank: int = 0
    world: int = 1
    is_per_process: bool = False

    @property
    def scale(self) -> int:
        """How many times the batch size that was given a batch of all processes is."""
        return self.world if self.is_per_process else 1

    def size(self, total: int) -> int:
        """How many samples of a batch of `total` are this process's."""
        return (self.rank + 1) * total // self.world - self.rank * total // self.world

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """The samples of the batch from `start` to `stop` that this process fetches: its own, or one to stand in."""
        total = stop - start
        first, last = start + self.rank * total // self.world, start + (self.rank + 1) * total // self.world
        return (first, last) if first < last else (start, start + 1)


class ShardedBatches(StreamAround):
    """Every so many ready batches of a stream, one for each process.

    The batches cannot be cut, so each process reads all of them and keeps its own. The position stays that of the
    stream behind it, which is the same for every number of processes.
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

    def _measure(self) -> None:
        whole = self._stream.num_batches
        self.num_batches = None if whole is None else -(-whole // self._shard.world)
        self.num_samples = self._stream.num_samples


class AlreadySharded(StreamAround):
    """A stream over data that was divided among the processes by the user, as a DistributedSampler does."""

    def __init__(self, stream: Stream, world: int) -> None:
        self._world = world
        super().__init__(stream)
        self.is_shared = True

    def _measure(self) -> None:
        """Every process has as many samples as the others."""
        own = self._stream.num_samples
        self.num_batches, self.num_samples = self._stream.num_batches, None if own is None else own * self._world

    def take(self, count: int, max_samples: int | None = None) -> list[Batch]:
        own = None if max_samples is None else -(-max_samples // self._world)
        return [Batch(batch.value, batch.size, batch.size * self._world) for batch in self._stream.take(count, own)]
