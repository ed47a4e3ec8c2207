"""The collectives that this process launches: counted, with their bytes, wherever they are
called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from loopwright._torch_compat.distributed import dtensor_type
from loopwright.scaling import Collective
from loopwright.trees import leaves


def table_of(collectives: Iterable[Collective]) -> dict[tuple[str, int, int], int]:
    """How many collectives there are of each kind, payload and group size, to compare a count with
    the computed ones."""
    counts: Counter[tuple[str, int, int]] = Counter()
    for each in collectives:
        if each.group > 1:
            counts[each.kind, each.payload, each.group] += each.count
    return dict(counts)


@contextmanager
def counted_collectives() -> Iterator[list[Collective]]:
    """Count every collective that this process launches inside the context, with its bytes.

    Collectives of `torch.distributed`, of process groups directly, of FSDP2 and of DTensors are
    counted, of autograd's threads as well; of other threads of the program they are not. What
    `torch.compile` has compiled may run uncompiled meanwhile.

    Yields:
        The collectives so far, in their order.
    """
    counted: list[Collective] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            dtensor = dtensor_type()
            if dtensor is not None and any(issubclass(each, dtensor) for each in types):
                return NotImplemented  # so that the collectives inside come here
            result = func(*args, **(kwargs or {}))
            if (collective := _collective(func, args, kwargs or {})) is not None:
                counted.append(collective)
            return result

    with Mode():
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
    return _resolve_process_group(name)
