"""Batches on the device: the next one is moved while the present one computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.containers import map_tensors, tensors_in

Move = Callable[[Any], Any]


class DeviceFeed:
    """Moves batches to the device, at most one of them before it is needed.

    A batch is recognised by identity: one that was moved in advance and is not asked for next is
    dropped. So a feed can be wrong about the next batch without any effect on what is trained.
    """

    def __init__(self, move: Move) -> None:
        self._move = move
        self._value: Any = None
        self._moved: Any = None

    def start(self, value: Any) -> None:
        """Begin to move the batch that will probably be asked for next; None if there is none."""
        self._value, self._moved = value, None if value is None else self._move(value)

    def get(self, value: Any) -> Any:
        """Return a batch on the device; it is moved now unless that has begun."""
        if value is not self._value:
            self.start(value)
        moved = self._moved
        self._value = None
        self._moved = None
        return moved


class CudaFeed(DeviceFeed):
    """A feed whose copies are on a CUDA stream of their own, so that they overlap with the
    computation.

    Args:
        move: Moves a batch, without waiting for copies from pinned memory.
        device: The device.
        pins: Whether to copy tensors to pinned memory first; a copy from other memory makes the
            host wait.
    """

    def __init__(self, move: Move, device: torch.device, *, pins: bool) -> None:
        super().__init__(move)
        self._device = device
        self._pins = pins
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, value: Any) -> None:
        if not all(tensor.device.type == "cpu" for tensor in tensors_in(value)):
            super().start(value)  # it may depend on kernels of the current stream
            return
        with torch.cuda.stream(self._copies):
            super().start(pinned(value) if self._pins else value)
        self._value = value

    def get(self, value: Any) -> Any:
        moved = super().get(value)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._copies)
        for tensor in tensors_in(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)  # its memory belongs to the stream of copies
        return moved


def pinned(value: Any) -> Any:
    """Copy the tensors of a batch to pinned memory, except those that are there."""
    return map_tensors(lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory(), value)
