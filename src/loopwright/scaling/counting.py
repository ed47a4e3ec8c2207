"""The collectives that this process launches: counted, with their bytes, wherever they are
called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .._torch_compat.distributed import dispatching, dtensor_type, group_named
from ..trees import leaves


@dataclass(frozen=True, slots=True)
class Collective:
    """One or several equal collectives, as one rank takes part in them.

    Args:
        kind: "all-reduce", "all-gather", "reduce-scatter", "broadcast" or "all-to-all".
        payload: Bytes of the full tensor: what is reduced, what has been gathered, what is to be
            scattered.
        group: The number of ranks that take part.
        count: How many there are.
        axis: The part of the mesh that takes part: "replicate", "shard", "tensor", "data" or
            "world"; "" if unknown.
        phase: When: "forward", "backward", "update", or "" if unknown.
        what: What is sent, in words.

    Example:
        >>> from loopwright.scaling import Collective
        >>> Collective("all-reduce", payload=1000, group=4).wire
        1500.0
    """

    kind: str
    payload: int
    group: int
    count: int = 1
    axis: str = ""
    phase: str = ""
    what: str = ""

    @property
    def wire(self) -> float:
        """Bytes that each rank sends, for all of them together, by a ring."""
        n = self.group
        if n <= 1:
            return 0.0
        shares = {"all-reduce": 2 * (n - 1) / n, "broadcast": 1.0}
        return self.count * shares.get(self.kind, (n - 1) / n) * self.payload


@dataclass(slots=True)
class Counted:
    """The collectives that were launched, in their order.

    Example:
        >>> from loopwright.scaling import Collective, Counted
        >>> Counted([Collective("all-gather", payload=800, group=2)]).wire
        400.0
    """

    collectives: list[Collective] = field(default_factory=list)

    @property
    def wire(self) -> float:
        """Bytes that this rank sent, by a ring."""
        return sum(each.wire for each in self.collectives)


def table_of(collectives: Iterable[Collective]) -> dict[tuple[str, int, int], int]:
    """How many collectives there are of each kind, payload and group size, to compare a count with
    an estimate.

    Example:
        >>> from loopwright.scaling import Collective, table_of
        >>> table_of([Collective("all-reduce", 20, 2), Collective("all-reduce", 20, 2)])
        {('all-reduce', 20, 2): 2}
    """
    counts: Counter[tuple[str, int, int]] = Counter()
    for each in collectives:
        if each.group > 1:
            counts[each.kind, each.payload, each.group] += each.count
    return dict(counts)


@contextmanager
def counted_collectives() -> Iterator[Counted]:
    """Count every collective that this process launches inside the context, with its bytes.

    Collectives of `torch.distributed`, of process groups directly, of FSDP2 and of DTensors are
    counted, of autograd's threads as well; of other threads of the program they are not. What
    `torch.compile` has compiled may run uncompiled meanwhile.

    Yields:
        What has been counted so far.

    Example:
        >>> from loopwright.scaling import counted_collectives
        >>> with counted_collectives() as counted:
        ...     pass  # trainer.train(data, num_updates=1)
        >>> counted.wire
        0
    """
    counted = Counted()

    def see(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        dtensor = dtensor_type()
        if dtensor is not None and any(issubclass(each, dtensor) for each in types):
            return NotImplemented  # so that the collectives inside come here
        result = func(*args, **kwargs)
        if (collective := _collective(func, args, kwargs)) is not None:
            counted.collectives.append(collective)
        return result

    with dispatching(see):
        yield counted


# what the names of torch's operators begin with, without their underscores
KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "alltoall": "all-to-all",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}
OUTPUT_FIRST = ("all-gather", "reduce-scatter", "all-to-all", "gather")  # of operators of c10d
SENT_IN_PARTS = (
    "all-gather",
    "gather",
    "scatter",
)  # whose tensors are a rank's part of the payload


def _collective(func: Any, args: Any, kwargs: Any) -> Collective | None:
    """What an operator of torch sends; None of one that sends nothing, as that which waits."""
    if getattr(func, "namespace", "") not in ("c10d", "_c10d_functional"):
        return None
    name = func.name().partition("::")[2].replace("_", "")
    kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), None)
    if kind is None:
        return None
    place = 1 if func.namespace == "c10d" and kind in OUTPUT_FIRST else 0
    size = _group((*args, *kwargs.values())).size()
    payload = sum(tensor.nbytes for tensor in leaves(args[place]))
    return Collective(kind, payload * size if kind in SENT_IN_PARTS else payload, size)


def _group(values: Iterable[Any]) -> dist.ProcessGroup:
    """The process group among the arguments of an operator: an object, or the last word."""
    name = ""
    for value in values:
        name = value if isinstance(value, str) else name
        if isinstance(value, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(value)
            except RuntimeError:  # another object, such as the operation of a reduction
                continue
    group: dist.ProcessGroup = group_named(name)
    return group
