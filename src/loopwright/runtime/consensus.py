"""Consensus of all ranks on requests, without waiting: what one rank requests in an update, all
know in the next.

Which collectives an update takes, besides those of the gradients:

| ranks | flag of the non-finite guard | requests and clock |
|---|---|---|
| CPU, DDP | in the last gradient bucket | in the same message; an all-reduce more in an update after a request |
| CPU, other meshes | one all-reduce, started before the backward pass | in the same message |
| GPU, DDP | in the last gradient bucket | one asynchronous all-reduce on the host |
| GPU, other meshes | one all-reduce, started before the backward pass | one asynchronous all-reduce on the host |

Where gradients are sharded, one more all-reduce of a number says whether all of them are finite;
not on the CPU with FSDP2 alone, where each rank sees the reduced gradients of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ConfigurationError
from .buckets import MESSAGE_SIZE

NUM_REQUESTS = 4  # a signal, a stop, a resume point, the clock
NUM_STAMPS = 4096
EXACT = 1 << 24  # float32 holds whole numbers exactly up to this one


class Stamps:
    """A number for each set of parameters that is updated together; it is the same on all ranks."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[ref[nn.Parameter], int]] = {}  # of each parameter, by its id
        self._num_models = 0

    def add(self, model: nn.Module) -> None:
        """Number the parameters of a model; all ranks add the same models in the same order."""
        self._num_models += 1
        for place, param in enumerate(model.parameters()):
            self._numbers[id(param)] = ref(param), crc32(f"{self._num_models} {place}".encode())

    def of(self, params: Sequence[nn.Parameter]) -> int:
        """The number of these parameters; 0 where they are of no model."""
        known = self._numbers.get(id(params[0])) if params else None
        return 0 if known is None or known[0]() is not params[0] else known[1] + len(params)


class RequestConsensus:
    """The maximum of all ranks' requests, one update late.

    Every rank calls `exchange` once per update, with the same number of requests, and all get the
    same answers. The all-reduce runs on the host while the next update is computed, so no rank
    waits for it.
    """

    def __init__(self, host_group: dist.ProcessGroup) -> None:
        self._group = host_group
        # The tensor of the all-reduce in flight must not be written to, so two take turns.
        self._tensors = [torch.zeros(NUM_REQUESTS, dtype=torch.int64) for _ in range(2)]
        # ten times faster to write to than the tensors
        self._values = [tensor.numpy() for tensor in self._tensors]
        self._none = (0,) * NUM_REQUESTS
        self._turn = 0
        self._work: Any = None
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._options.asyncOp = True

    def exchange(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        """Send this update's requests; return the maximum over all ranks of the previous update's
        (at first zeros)."""
        agreed = self.finish()
        self._start(requests)
        return agreed

    def finish(self) -> tuple[int, ...]:
        """Wait for the all-reduce in flight, if there is one, and return its result."""
        if self._work is None:
            return self._none
        self._work.wait()
        self._work = None
        return tuple(self._values[self._turn].tolist())

    def _start(self, requests: tuple[int, ...]) -> None:
        self._turn = 1 - self._turn
        self._values[self._turn][:] = requests
        self._work = self._group.allreduce([self._tensors[self._turn]], self._options)

    def message(self, flag: Tensor | float | None, stamp: int = 0) -> Tensor | None:
        """What is summed over all ranks before the step: the flag, on its device."""
        return flag.repeat(MESSAGE_SIZE) if isinstance(flag, Tensor) else None

    def receive(self, summed: Tensor, stamp: int = 0) -> Tensor | float:
        """1 if the flag of any rank is set."""
        return summed[0].clamp(max=1).float()


class HostConsensus(RequestConsensus):
    """The same for CPU ranks, where an all-reduce takes the time of the processes themselves.

    On two processes of a small model an asynchronous all-reduce makes an update a third to a half
    longer. So the message also says whether the rank has a request, and carries the last request, a
    clock that only rank 0 gives. The requests are all-reduced in an update in which some rank has
    one, or in which there was no message.

    A stamp goes with it, which ranks have in common only if they update the same parameters in the
    same update: a rank that updates another optimizer of the same size, or once more, would mix up
    gradients without an error.
    """

    def __init__(self, host_group: dist.ProcessGroup) -> None:
        super().__init__(host_group)
        self._requests: tuple[int, ...] | None = None  # of the previous update
        self._summed: list[float] | None = None
        self._message = torch.zeros(MESSAGE_SIZE, dtype=torch.float64)
        self._numbers = self._message.numpy()
        self._world = host_group.size()
        self._scale = self._world + 1  # more than there can be ranks with a request
        most = EXACT // (self._scale * self._world)
        self._num_stamps = max(min(NUM_STAMPS, most), 1)
        self._num_updates = 0

    def exchange(self, requests: tuple[int, ...]) -> tuple[int, ...]:
        self._num_updates += 1
        previous = self._requests
        self._requests = requests
        summed = self._summed
        self._summed = None
        if previous is None:
            return self._none
        if summed is not None and not summed[1]:
            return (*self._none[1:], int(summed[2]))
        self._start(previous)
        return super().finish()

    def finish(self) -> tuple[int, ...]:
        """Drop the previous update's requests, which were not sent."""
        self._requests = None
        self._summed = None
        self._num_updates = 0
        return self._none

    def message(self, flag: Tensor | float | None, stamp: int = 0) -> Tensor:
        """What is summed over all ranks before the step: the flag, the stamp with any request, the
        clock."""
        requests = self._requests or self._none
        numbers = self._numbers
        # faster one by one
        numbers[0] = float(flag or 0)
        numbers[2] = requests[-1]
        numbers[1] = any(requests[:-1]) + self._scale * self._stamp(stamp)
        return self._message

    def receive(self, summed: Tensor, stamp: int = 0) -> float:
        self._summed = values = summed.tolist()
        stamps, values[1] = divmod(values[1], self._scale)
        if stamps != self._world * self._stamp(stamp):
            raise ConfigurationError(
                "ranks-update-differently",
                f"The processes do not make the same updates: in update {self._num_updates + 1} "
                "of this `train` call, one of them updated another optimizer, or updated more or "
                "less often than the others. No weights were changed by it. Every process has to "
                "update the same optimizers in the same order: a condition must not depend on "
                "the loss or the random numbers of one process. Use `self.progress`, which is "
                "the same on all, or gather the value that decides.",
            )
        return float(values[0] > 0)

    def _stamp(self, stamp: int) -> int:
        return (stamp + self._num_updates) % self._num_stamps
