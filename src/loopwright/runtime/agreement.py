"""Agreeing without waiting: what any process wished for in one update, all of them know in the next."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Agreement:
    """The largest wish of all processes, one update late.

    Every process has to call `exchange` equally often, with as many wishes; then all get the same answers. The
    answer comes one update late because the exchange is under way while the next update is computed.
    """

    def __init__(self, host_group: dist.ProcessGroup, num_wishes: int = 4) -> None:
        self._group = host_group
        # The tensor of the exchange under way must not be written to, so two take turns.
        self._tensors = [torch.zeros(num_wishes, dtype=torch.int64) for _ in range(2)]
        self._values = [tensor.numpy() for tensor in self._tensors]  # ten times faster to write one by one
        self._none = (0,) * num_wishes
        self._turn = 0
        self._work: Any = None
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._options.asyncOp = True

    def exchange(self, wishes: tuple[int, ...]) -> tuple[int, ...]:
        """Send this update's wishes; get the maximum over all processes of the update before (zeros at first)."""
        agreed = self.finish()
        self._turn = 1 - self._turn
        self._values[self._turn][:] = wishes
        self._work = self._group.allreduce([self._tensors[self._turn]], self._options)
        return agreed

    def finish(self) -> tuple[int, ...]:
        """Wait for the exchange under way, so that none is left at the end, and return what it agreed on."""
        if self._work is None:
            return self._none
        self._work.wait()
        self._work = None
        return tuple(self._values[self._turn].tolist())
