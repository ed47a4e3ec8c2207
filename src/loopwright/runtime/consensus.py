"""Consensus of all ranks on requests, without waiting: what one rank requests in an update, all know in the next.

Which collectives an update takes, besides those of the gradients:

| ranks | flag of the non-finite guard | requests and clock |
|---|---|---|
| CPU, DDP | in the last gradient bucket | in the same message; an all-reduce more in an update after a request |
| CPU, other meshes | one all-reduce, started before the backward pass | in the same message |
| GPU, DDP | in the last gradient bucket | one asynchronous all-reduce on the host |
| GPU, other meshes | one all-reduce, started before the backward pass | one asynchronous all-reduce on the host |
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .buckets import MESSAGE_SIZE

NUM_REQUESTS = 4  # a signal, a stop, a resume point, the clock


class RequestConsensus:
    """The maximum of all ranks' requests, one update late.

    Every rank calls `exchange` once per update, with the same number of requests, and all get the same answers. The
    all-reduce runs on the host while the next update is computed, so no rank waits for it.
    """

    def __init__(self, host_group: dist.ProcessGroup, num_requests: int = NUM_REQUESTS) -> None:
        self._group = host_group
        # The tensor of the all-reduce in flight must not be written to, so two take turns.
        self._tensors = [torch.zeros(num_requests, dtype=torch.int64) for _ in range(2)]
        self._values = [tensor.numpy() for tensor in self._tensors]  # ten times faster to write to than the tensors
        self._none = (0,) * num_requests
        self._turn = 0
        self._work: Any = None
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._options.asyncOp = True

    def exchange(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        """Send this update's requests; return the maximum over all ranks of the previous update's (at first zeros)."""
        agreed = self._wait()
        self._start(requests)
        return agreed

    def finish(self) -> tuple[int, ...]:
        """Wait for the all-reduce in flight, if there is one, and return its result."""
        return self._wait()

    def _start(self, requests: tuple[int, ...]) -> None:
        self._turn = 1 - self._turn
        self._values[self._turn][:] = requests
        self._work = self._group.allreduce([self._tensors[self._turn]], self._options)

    def _wait(self) -> tuple[int, ...]:
        if self._work is None:
            return self._none
        self._work.wait()
        self._work = None
        return tuple(self._values[self._turn].tolist())

    def message(self, flag: Tensor | float | None) -> Tensor | None:
        """What is summed over all ranks before the step: the flag, on its device."""
        return flag.repeat(MESSAGE_SIZE) if isinstance(flag, Tensor) else None

    def receive(self, summed: Tensor) -> Tensor | float:
        """1 if the flag of any rank is set."""
        return summed[0].clamp(max=1).float()


class HostConsensus(RequestConsensus):
    """The same for CPU ranks, where an all-reduce takes the time of the processes themselves.

    On two processes of a small model an asynchronous all-reduce makes an update a third to a half longer. So
    the message also says whether the rank has a request, and carries the last request, a clock that only rank 0 gives.
    The requests are all-reduced in an update in which some rank has one, or in which there was no message.
    """

    def __init__(self, host_group: dist.ProcessGroup, num_requests: int = NUM_REQUESTS) -> None:
        super().__init__(host_group, num_requests)
        self._requests: tuple[int, ...] | None = None  # of the previous update
        self._summed: list[float] | None = None
        self._message = torch.zeros(MESSAGE_SIZE, dtype=torch.float64)
        self._numbers = self._message.numpy()

    def exchange(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        previous, self._requests = self._requests, requests
        summed, self._summed = self._summed, None
        if previous is None:
            return self._none
        if summed is not None and not summed[1]:
            return (*self._none[1:], int(summed[2]))
        self._start(previous)
        return self._wait()

    def finish(self) -> tuple[int, ...]:
        """Drop the previous update's requests, which were not sent."""
        self._requests = self._summed = None
        return self._none

    def message(self, flag: Tensor | float | None) -> Tensor:
        """What is summed over all ranks before the step: the flag, whether there is a request, the clock."""
        requests, numbers = self._requests or self._none, self._numbers
        numbers[0], numbers[1], numbers[2] = float(flag or 0), any(requests[:-1]), requests[-1]  # faster one by one
        return self._message

    def receive(self, summed: Tensor) -> float:
        self._summed = summed.tolist()
        return float(self._summed[0] > 0)
