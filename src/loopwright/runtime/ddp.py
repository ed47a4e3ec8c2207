"""Gradients averaged over processes, and a few numbers that travel with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .dtensor import spread_of
from .fsdp import local_part

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


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(slots=True)
class Part:
    """This process's part of the batch under way; `counts` is False for a sample that only stands in for none."""

    group: dist.ProcessGroup | None = None
    counts: bool = True


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalises with the mean and variance of all processes' samples together; in eval mode like any batch norm."""

    part: Part

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  (torch's name for it)
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name for it)
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        normalise: Any = _Normalise.apply
        output, mean, variance, count = normalise(input, self.weight, self.bias, self.eps, self.part)
        if self.running_mean is not None:
            self._remember(mean, variance, count)
        return cast(Tensor, output)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


def convert(module: nn.Module, part: Part) -> list[SyncBatchNorm]:
    """Make the batch norms of a model compute over all processes; they stay the objects they are, with their names."""
    converted = []
    for norm in module.modules():
        if type(norm) in PLAIN:
            norm.__class__ = SyncBatchNorm
            own = cast(SyncBatchNorm, norm)
            own.part = part
            converted.append(own)
    return converted


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, part: Part) -> Any:
        exact = x if x.dtype == torch.float64 else x.float()
        mean, variance, count = _statistics(exact, part)
        if x.device.type == "cpu" and count.item() <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
        scale = torch.rsqrt(variance + eps)
        normal = (exact - _along(mean, x)) * _along(scale, x)
        ctx.save_for_backward(normal, scale, weight, count)
        ctx.part, ctx.has_bias = part, bias is not None
        output = normal if weight is None else normal * _along(weight, x)
        output = output if bias is None else output + _along(bias, x)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        normal, scale, weight, count = ctx.saved_tensors
        dims, exact = _dims(grad), grad.to(normal.dtype)
        of_weight, of_bias = (exact * normal).sum(dims), exact.sum(dims)
        of_normal = exact if weight is None else exact * _along(weight, grad)
        sums = torch.stack([of_normal.sum(dims), (of_normal * normal).sum(dims)])
        dist.all_reduce(sums, group=ctx.part.group)
        if ctx.part.counts:
            shift, slope = sums / count
            of_normal = of_normal - _along(shift, grad) - normal * _along(slope, grad)
        of_input = (of_normal * _along(scale, grad)).to(grad.dtype)
        of_weight = None if weight is None else of_weight.to(weight.dtype)
        return of_input, of_weight, of_bias if ctx.has_bias else None, None, None


def _statistics(x: Tensor, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over all processes, and how many values they are of."""
    dims, channels = _dims(x), x.shape[1]
    own_count = x.numel() // channels if part.counts and channels else 0
    if own_count:
        variance, mean = torch.var_mean(x, dims, correction=0)
    else:
        variance = mean = x.new_zeros(channels)
    packed = torch.cat([mean, variance, x.new_full((1,), own_count)])
    parts = [torch.empty_like(packed) for _ in range(dist.get_world_size(part.group))]
    dist.all_gather(parts, packed, group=part.group)
    stacked = torch.stack(parts)
    means, variances, counts = stacked[:, :channels], stacked[:, channels:-1], stacked[:, -1:]
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / count
    return mean, variance, count


def _dims(x: Tensor) -> list[int]:
    """All dimensions but the channels'."""
    return [0, *range(2, x.dim())]


def _along(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1 for _ in range(like.dim() - 2)))
