"""Gradients averaged over processes, and a few numbers that travel with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..alike import spread_of
from .wrapping import local_part

EXACT = (torch.float32, torch.float64)  # types that do not round the numbers that travel much
KEPT_BYTES = 1 << 20  # up to here memory for a bucket costs less than to ask for it in every update


class Averaging:
    """Averages over the processes of a group, one collective a bucket."""

    def __init__(self, group: dist.ProcessGroup | None, world: int) -> None:
        self._group, self._world = group, world
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False
        self._plans: dict[tuple[Any, ...], list[Bucket]] = {}

    def clear(self) -> None:
        """Forget the parameters seen so far."""
        self._plans.clear()

    def average(self, params: Sequence[nn.Parameter], message: Tensor | None = None) -> Tensor | None:
        """Average the gradients; the sum of all processes' messages, or None where there was nothing to carry them.

        A parameter that took part on some processes only counts as zero on the others; one that took part nowhere
        keeps no gradient, as on a single process. A message travels with the first bucket.
        """
        told = None
        for number, bucket in enumerate(self._plan(params)):
            if number == 0 and message is not None and bucket.dtype in EXACT:
                told = bucket.average(self._sum, self._world, message)
            else:
                bucket.average(self._sum, self._world, None)
        return told

    def _plan(self, params: Sequence[nn.Parameter]) -> list[Bucket]:
        key = tuple([(id(param), param.dtype) for param in params if param.requires_grad])
        if key not in self._plans:
            self._plans[key] = [Bucket(some) for some in buckets(params)]
        return self._plans[key]

    def _sum(self, flat: Tensor) -> None:
        # What `dist.all_reduce` comes to; the checks around it cost as much as a small model's backward pass.
        group: Any = dist.group.WORLD if self._group is None else self._group
        work = group.allreduce([flat], self._options)
        if work is not None:
            work.wait()


class Bucket:
    """Parameters of one type whose gradients are averaged together.

    A flat tensor holds the message, a mark for each parameter that has a gradient, which only a process without it has
    to read, and the gradients.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = params  # kept, so that no other parameter gets the id of one
        parts = [local_part(param) for param in params]
        self.dtype = parts[0].dtype
        self._marks = torch.ones(len(params), dtype=self.dtype, device=parts[0].device)
        self._shapes = [part.shape for part in parts]
        self._is_kept = sum(part.nbytes for part in parts) <= KEPT_BYTES
        self._kept: dict[int, tuple[Tensor, Tensor, list[Tensor]]] = {}

    def average(self, add_up: Callable[[Tensor], None], world: int, message: Tensor | None) -> Tensor | None:
        """Average the gradients; the sum of the messages, to be read before the next call."""
        grads = [_gradient_part(param) for param in self.params]
        held = [grad for grad in grads if grad is not None]
        flat, averaged, views = self._memory(0 if message is None else message.numel())
        heads = [self._marks] if message is None else [message, self._marks]
        front, is_complete = len(heads), len(held) == len(grads)
        if is_complete:
            torch._foreach_copy_(views, [*heads, *held])
        else:
            flat.zero_()
            has = [grad is not None for grad in grads]
            heads[-1] = torch.tensor(has, dtype=self.dtype, device=flat.device)
            torch._foreach_copy_([*views[:front], *compress(views[front:], has)], [*heads, *held])
        add_up(flat)
        averaged.div_(world)
        if is_complete:
            torch._foreach_copy_(held, views[front:])
        else:
            self._hand_out(grads, views[front:], views[front - 1])
        return None if message is None else views[0]

    def _hand_out(self, grads: Sequence[Tensor | None], views: Sequence[Tensor], marks: Tensor) -> None:
        """Copy the averages to the gradients, also to those of other processes only."""
        for param, grad, view, mark in zip(self.params, grads, views, marks, strict=True):
            if grad is not None:
                grad.copy_(view)
            elif mark.item():
                param.grad = torch.zeros_like(param)
                local_part(param.grad).copy_(view)

    def _memory(self, num_words: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The flat tensor, its part for gradients, and a view of it for the message, the marks and each gradient."""
        if num_words in self._kept:
            return self._kept[num_words]
        heads = [num_words, len(self.params)] if num_words else [len(self.params)]
        sizes = [*heads, *(shape.numel() for shape in self._shapes)]
        flat = self._marks.new_empty(sum(sizes))
        cut = torch.split(flat, sizes)
        views = [view.view(shape) for view, shape in zip(cut[len(heads) :], self._shapes, strict=True)]
        memory = flat, flat[sum(heads) :], [*cut[: len(heads)], *views]
        if self._is_kept:
            self._kept[num_words] = memory
        return memory


def buckets(params: Iterable[nn.Parameter], max_bytes: int = 32 << 20) -> Iterator[list[nn.Parameter]]:
    """Trainable parameters in groups of one type and a bounded size."""
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    sizes: dict[torch.dtype, int] = {}
    for param in params:
        if param.requires_grad:
            dtype = param.dtype
            groups.setdefault(dtype, []).append(param)
            sizes[dtype] = sizes.get(dtype, 0) + param.numel() * param.element_size()
            if sizes[dtype] >= max_bytes:
                sizes[dtype] = 0
                yield groups.pop(dtype)
    yield from groups.values()


def _gradient_part(param: nn.Parameter) -> Tensor | None:
    """This process's part of a gradient, spread as its parameter is."""
    grad: Any = param.grad
    if grad is None or type(grad) is Tensor or spread_of(grad) is None:
        own: Tensor | None = grad.detach() if grad is not None and grad.requires_grad else grad
        return own
    placements = param.placements  # type: ignore[attr-defined]
    if grad.placements != placements:
        param.grad = grad = grad.redistribute(placements=placements)
    return local_part(grad)
