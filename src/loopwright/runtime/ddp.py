"""Data parallelism: gradients averaged over ranks, and batch norm over the batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._torch_compat import BatchNormBase, foreach_copy_
from .dtensor import local_tensor, mesh_of

MESSAGE_SIZE = 3  # numbers that are summed together with the gradients, see `consensus`
MESSAGE_DTYPES = (torch.float32, torch.float64)  # precise enough for the numbers of a message
KEPT_BYTES = 1 << 20  # up to this size, keeping a bucket's memory is cheaper than allocating it in every update


class Averaging:
    """Averages gradients over the ranks of a group; one all-reduce per bucket."""

    def __init__(self, group: dist.ProcessGroup | None, world: int) -> None:
        self._group, self._world = group, world
        self._options = dist.AllreduceOptions()
        self._options.asyncOp = False
        self._plans: dict[tuple[Any, ...], list[Bucket]] = {}

    def clear(self) -> None:
        """Drop the buckets of all parameters seen so far."""
        self._plans.clear()

    def average(self, params: Sequence[nn.Parameter], message: Tensor | None = None) -> Tensor | None:
        """Average the gradients, and sum a message in the same all-reduce; None where no bucket can hold a message.

        A parameter with a gradient on some ranks only counts as zero on the others; one without a gradient on any
        rank keeps none, as in a single process.
        """
        summed = None
        for bucket in self._plan(params):
            has_message = message is not None and summed is None and bucket.dtype in MESSAGE_DTYPES
            header = bucket.average(self._sum, self._world, message if has_message else None)
            summed = header if has_message else summed
        return summed

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
    """Parameters of one dtype whose gradients are averaged in one all-reduce.

    The flat tensor holds a message, one number per parameter that says whether it has a gradient (read only by a rank
    that lacks one), and the gradients.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = params  # kept, so that no other parameter gets the id of one
        parts = [local_tensor(param) for param in params]
        self.dtype = parts[0].dtype
        self._all_present = torch.ones(len(params), dtype=self.dtype, device=parts[0].device)
        self._no_message = self._all_present.new_zeros(MESSAGE_SIZE)
        self._shapes = [part.shape for part in parts]
        self._is_kept = sum(part.nbytes for part in parts) <= KEPT_BYTES
        self._kept: tuple[Tensor, Tensor, list[Tensor]] | None = None

    def average(self, all_reduce: Callable[[Tensor], None], world: int, message: Tensor | None = None) -> Tensor:
        """Average the gradients; the sum of all ranks' messages, to be read before the next call."""
        grads = [_gradient_part(param) for param in self.params]
        held = [grad for grad in grads if grad is not None]
        flat, averaged, views = self._memory()
        is_complete = len(held) == len(grads)
        message = self._no_message if message is None else message
        if is_complete:
            foreach_copy_(views, [message, self._all_present, *held])
        else:
            flat.zero_()
            has = [grad is not None for grad in grads]
            present = torch.tensor(has, dtype=self.dtype, device=flat.device)
            foreach_copy_([*views[:2], *compress(views[2:], has)], [message, present, *held])
        all_reduce(flat)
        averaged.div_(world)
        if is_complete:
            foreach_copy_(held, views[2:])
        else:
            self._copy_out(grads, views[2:], views[1])
        return views[0]

    def _copy_out(self, grads: Sequence[Tensor | None], views: Sequence[Tensor], present: Tensor) -> None:
        """Copy the averages to the gradients, including those that only other ranks had."""
        for param, grad, view, is_present in zip(self.params, grads, views, present, strict=True):
            if grad is not None:
                grad.copy_(view)
            elif is_present.item():
                param.grad = torch.zeros_like(param)
                local_tensor(param.grad).copy_(view)

    def _memory(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The flat tensor, its part with the gradients, and views: message, presence, each gradient."""
        if self._kept is not None:
            return self._kept
        sizes = [MESSAGE_SIZE, len(self.params), *(shape.numel() for shape in self._shapes)]
        flat = self._all_present.new_empty(sum(sizes))
        message, present, *cut = torch.split(flat, sizes)
        views = [message, present, *(view.view(shape) for view, shape in zip(cut, self._shapes, strict=True))]
        memory = flat, flat[sum(sizes[:2]) :], views
        if self._is_kept:
            self._kept = memory
        return memory


def buckets(params: Iterable[nn.Parameter], max_bytes: int = 32 << 20) -> Iterator[list[nn.Parameter]]:
    """Trainable parameters in groups of one dtype and a bounded size."""
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
    """This rank's part of a gradient, with the placements of its parameter."""
    grad: Any = param.grad
    if grad is None or type(grad) is Tensor or mesh_of(grad) is None:
        own: Tensor | None = grad.detach() if grad is not None and grad.requires_grad else grad
        return own
    placements = param.placements  # type: ignore[attr-defined]
    if grad.placements != placements:
        param.grad = grad = grad.redistribute(placements=placements)
    return local_tensor(grad)


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(slots=True)
class Part:
    """This rank's part of the current batch; `counts` is False for a placeholder on a rank without samples."""

    group: dist.ProcessGroup | None = None
    counts: bool = True


class SyncBatchNorm(BatchNormBase):
    """Batch norm with the mean and variance of all ranks' samples; in eval mode like any batch norm."""

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
    """Make the batch norms of a model compute over all ranks; they stay the same objects, with their names."""
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
    """Mean and variance of each channel over all ranks, and the number of values."""
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
    """All dimensions but that of the channels."""
    return [0, *range(2, x.dim())]


def _along(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1 for _ in range(like.dim() - 2)))
