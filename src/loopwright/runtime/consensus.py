"""Agreeing without waiting: what any process wished for in one update, all of them know in the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

WORDS = 3  # numbers in the message of a bell


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


class Bell:
    """Wishes of processes on the host, told with what they exchange in every update anyway.

    A collective costs the same whatever it carries, and on the host it is the processes themselves that pay for it. So
    with the gradients there travels whether anybody has a wish, and the last of the wishes, a clock that only the first
    process gives. The wishes are exchanged if the bell rang, or if nothing could travel.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._posted: tuple[int, ...] | None = None
        self._heard: Sequence[float] | None = None
        self._message = torch.zeros(WORDS, dtype=torch.float64)
        self._values = self._message.numpy()

    def message(self, flag: float) -> Tensor:
        """What is to travel: a flag of the sender's, the bell, the clock; sums and maxima of it mean the same."""
        posted, values = self._posted or (0,), self._values
        values[0], values[1], values[2] = flag, any(posted[:-1]), posted[-1]  # one by one, which is faster
        return self._message

    def hear(self, told: Sequence[float]) -> float:
        """Take what arrived; whether anybody's flag is set."""
        self._heard = told[1:]
        return float(told[0] > 0)

    def exchange(self, wishes: tuple[int, ...]) -> tuple[int, ...]:
        """The same as of an `Agreement`."""
        posted, self._posted = self._posted, wishes
        heard, self._heard = self._heard, None
        if posted is None:
            return (0,) * len(wishes)
        if heard is not None and not heard[0]:
            return (*(0,) * (len(wishes) - 1), int(heard[1]))
        self._agreement.exchange(posted)
        return self._agreement.finish()

    def finish(self) -> None:
        """Forget what was posted last, which nobody will act on."""
        self._posted = self._heard = None
