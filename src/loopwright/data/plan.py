"""The batches of one epoch as lists of indices, addressed by the number of samples before them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

from torch import Tensor

from ..errors import DataError
from .samplers import Indices, Order


class Plan(Protocol):
    """One epoch cut into batches; a position inside a batch stands for the rest of that batch."""

    num_batches: int
    num_samples: int

    def span(self, position: int) -> tuple[int, int]:
        """Where the rest of the batch at `position` begins and ends; the same number twice at the end."""

    def indices(self, start: int, stop: int) -> list[Any]: ...


class EvenBatches:
    """An order cut into batches of one size, the last one perhaps shorter."""

    def __init__(self, order: Indices, batch_size: int, drop_last: bool) -> None:
        length = len(order)
        self.order = order
        self.batch_size = batch_size
        self.num_samples = length - length % batch_size if drop_last else length
        self.num_batches = -(-self.num_samples // batch_size)

    def span(self, position: int) -> tuple[int, int]:
        end = position - position % self.batch_size + self.batch_size
        return position, max(position, min(end, self.num_samples))

    def indices(self, start: int, stop: int) -> list[Any]:
        part = self.order[start:stop]
        return part.tolist() if isinstance(part, Tensor) else list(part)


class GivenBatches:
    """Batches of indices as a batch sampler gave them."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = [batch.tolist() if isinstance(batch, Tensor) else list(batch) for batch in batches]
        if not all(self._batches):
            raise DataError("The batch sampler gave a batch without indices: leave empty batches out.")
        self._ends = list(accumulate(map(len, self._batches)))
        self.num_batches = len(self._batches)
        self.num_samples = self._ends[-1] if self._ends else 0

    def span(self, position: int) -> tuple[int, int]:
        number = bisect_right(self._ends, position)
        return position, self._ends[number] if number < self.num_batches else position

    def indices(self, start: int, stop: int) -> list[Any]:
        number = bisect_right(self._ends, start)
        first = self._ends[number] - len(self._batches[number])
        return self._batches[number][start - first : stop - first]


class Planner:
    """How the epochs of a data set are cut into batches.

    Without `batch_size`, `order` gives whole batches of indices, or items that are batches already.
    """

    def __init__(self, order: Order, batch_size: int | None, drop_last: bool, single: bool = False) -> None:
        self.order = order
        self.batch_size = 1 if single else batch_size
        self.drop_last = drop_last
        self.single = single

    def scaled(self, factor: int) -> "Planner":
        """The same with batches so many times as large, where it is this that cuts them."""
        size = self.batch_size * factor if self.is_even and self.batch_size is not None else self.batch_size
        return Planner(self.order, size, self.drop_last, self.single)

    @property
    def is_even(self) -> bool:
        """Whether batches are cut out of an order of single samples."""
        return self.batch_size is not None and not self.single

    def describe(self) -> dict[str, Any]:
        """What of it makes other batches where it differs."""
        size = None if self.single else self.batch_size
        return {"batch_size": size, "drop_last": self.drop_last, "order": self.order.describe()}

    def sizes(self) -> tuple[int | None, int | None]:
        """Batches and samples in an epoch that has not been drawn yet, as far as they are known."""
        length = len(self.order)
        if self.batch_size is None:
            return length, None
        plan = EvenBatches(range(length), self.batch_size, self.drop_last)
        return plan.num_batches, None if self.single else plan.num_samples

    def plan(self, epoch: int) -> Plan:
        indices = self.order.indices(epoch)
        if self.batch_size is not None:
            return EvenBatches(indices, self.batch_size, self.drop_last)
        return GivenBatches(list(indices))


def spans_from(plan: Plan, position: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
    """The spans of all batches from a position on, the first of them no longer than `limit`."""
    start, stop = plan.span(position)
    if limit is not None:
        stop = min(stop, start + limit)
    while start < stop:
        yield start, stop
        start, stop = plan.span(stop)
