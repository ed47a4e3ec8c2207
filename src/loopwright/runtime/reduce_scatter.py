"""FSDP2's reduce-scatter on the CPU, with the message of an update in it.

gloo has no reduce-scatter: torch copies the gradients of all shards, all-reduces the copy, and
takes one shard of it. The same all-reduce can be done in place, and has room for a message, which
saves an update a collective of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._torch_compat import note_nonfinite
from .buckets import MESSAGE_DTYPES, MESSAGE_SIZE

_SUM = dist.ReduceOp(dist.ReduceOp.SUM)


class Message:
    """Numbers to be summed over all ranks: `summed` once a collective has them, which is over after
    `work`, if any."""

    __slots__ = ("numbers", "stamp", "summed", "work")

    def __init__(self, numbers: Tensor, stamp: int = 0) -> None:
        self.numbers = numbers
        self.stamp = stamp
        self.summed: Tensor | None = None
        self.work: Any = None


class HostReduceScatter:
    """Called by FSDP2 for each group of parameters, in the same order on all ranks.

    The first call of a backward pass takes the message along, unless its dtype is too coarse for
    one. FSDP2 allocates its gradients here, so that there is room for a message behind them.
    """

    def __init__(self) -> None:
        self.pending: Message | None = None  # of the backward pass under way
        # above 0: gradients of a rank were not finite, which all ranks see here
        self.nonfinite = torch.zeros(())
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Memory for the gradients of all shards, or of one."""
        numel = int(size[0])
        return torch.empty(numel + MESSAGE_SIZE, dtype=dtype, device=device)[:numel]

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce the gradients, in the memory of `input_tensor`, and copy this rank's shard of
        them."""
        is_mean = op == dist.ReduceOp.AVG
        size = output_tensor.numel()
        numel = input_tensor.numel()
        message = self.pending
        tail = None
        flat = input_tensor
        if (
            message is not None
            and input_tensor.dtype in MESSAGE_DTYPES
            and (is_mean or op == dist.ReduceOp.SUM)
        ):
            self.pending = None
            flat = input_tensor.as_strided((numel + MESSAGE_SIZE,), (1,))
            tail = flat.narrow(0, numel, MESSAGE_SIZE).copy_(message.numbers)
        self._options.reduceOp = _SUM if is_mean else op
        work = group.allreduce([flat], self._options)
        if work is not None:
            work.wait()
        note_nonfinite(self.nonfinite, [flat])
        torch.div(
            input_tensor.narrow(0, size * group.rank(), size),
            group.size() if is_mean else 1,
            out=output_tensor,
        )
        if message is not None and tail is not None:
            message.summed = tail.clone()  # a view would keep the gradients in memory
