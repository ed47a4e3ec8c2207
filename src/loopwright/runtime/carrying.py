"""Numbers that travel with the gradients of a sharded model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .consensus import WORDS
from .ddp import EXACT


class Cargo:
    """A message to be taken along by the next carrier, and the sums of all processes' messages that were, by sender."""

    def __init__(self) -> None:
        self.message: Tensor | None = None
        self._sender = 0
        self._told: dict[int, list[float]] = {}

    def load(self, sender: int, message: Tensor) -> None:
        """Let a message take the place of an earlier one, also of what arrived of the same sender's."""
        self.message, self._sender = message, sender
        self._told.pop(sender, None)

    def deliver(self, told: list[float]) -> None:
        self._told[self._sender] = told
        self.message = None

    def unload(self, sender: int) -> list[float] | None:
        """What arrived; None if no carrier came by, which is so on all processes or on none."""
        if self._sender == sender:
            self.message = None
        return self._told.pop(sender, None)

    def clear(self) -> None:
        self.message = None
        self._told.clear()


class Carrier:
    """The reduce-scatter of a part of a sharded model, in place of torch's own, which it calls.

    Every process gets its part of the sum, so the message stands behind each part.
    """

    def __init__(self, inner: Any, cargo: Cargo) -> None:
        self._inner, self._cargo = inner, cargo
        self.allocate = inner.allocate
        self._behind: Tensor | None = None

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        message, is_mean = self._cargo.message, op == dist.ReduceOp.AVG
        can_carry = input_tensor.dtype in EXACT and (is_mean or op == dist.ReduceOp.SUM) and not async_op
        if message is None or not can_carry:
            return self._inner(output_tensor, input_tensor, group, op, async_op)
        world = group.size()
        if self._behind is None or self._behind.dtype != input_tensor.dtype:
            self._behind = input_tensor.new_empty(world, WORDS)
        self._behind.copy_(message)
        sent = torch.cat((input_tensor.view(world, -1), self._behind), dim=1)
        arrived = sent.new_empty(sent.shape[1])
        work = self._inner(arrived, sent.view(-1), group, op, async_op)
        output_tensor.copy_(arrived[:-WORDS])
        told = arrived[-WORDS:].tolist()
        self._cargo.deliver([value * world for value in told] if is_mean else told)
        return work
