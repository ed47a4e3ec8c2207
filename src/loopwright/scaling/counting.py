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
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            name = func.name().partition("::")[2].partition(".")[0]
            if name in OPERATORS:  # another sends nothing, as that which waits
                kind, place, is_part = OPERATORS[name]
                size = _group((*args, *kwargs.values())).size()
                payload = sum(tensor.nbytes for tensor in leaves(args[place]))
                if is_part:
                    payload *= size
                counted.collectives.append(Collective(kind, payload, size))
        return result

    with dispatching(see):
        yield counted


# Names of torch's operators: the kind, the position of the tensors, and by how much they are
# smaller than the payload.
OPERATORS = {
    "allreduce_": ("all-reduce", 0, False),
    "allreduce_coalesced_": ("all-reduce", 0, False),
    "all_reduce": ("all-reduce", 0, False),
    "all_reduce_": ("all-reduce", 0, False),
    "all_reduce_coalesced": ("all-reduce", 0, False),
    "_allgather_base_": ("all-gather", 1, True),
    "allgather_": ("all-gather", 1, True),
    "allgather_coalesced_": ("all-gather", 1, True),
    "allgather_into_tensor_coalesced_": ("all-gather", 1, True),
    "all_gather_into_tensor": ("all-gather", 0, True),
    "all_gather_into_tensor_out": ("all-gather", 0, True),
    "all_gather_into_tensor_coalesced": ("all-gather", 0, True),
    "_reduce_scatter_base_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor_coalesced_": ("reduce-scatter", 1, False),
    "reduce_scatter_": ("reduce-scatter", 1, False),
    "reduce_scatter_tensor": ("reduce-scatter", 0, False),
    "reduce_scatter_tensor_coalesced": ("reduce-scatter", 0, False),
    "broadcast_": ("broadcast", 0, False),
    "broadcast": ("broadcast", 0, False),
    "alltoall_": ("all-to-all", 1, False),
    "alltoall_base_": ("all-to-all", 1, False),
    "all_to_all_single": ("all-to-all", 0, False),
    "gather_": ("gather", 1, True),
    "scatter_": ("scatter", 0, True),
    "reduce_": ("reduce", 0, False),
}


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
