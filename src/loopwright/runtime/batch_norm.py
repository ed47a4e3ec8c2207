"""Batch norm over the batch of all ranks, as one process would compute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._torch_compat import BatchNormBase

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(slots=True)
class Part:
    """This rank's part of the current batch; `counts` is False for a placeholder on a rank without
    samples."""

    group: dist.ProcessGroup | None = None
    counts: bool = True


class SyncBatchNorm(BatchNormBase):
    """Batch norm with the mean and variance of all ranks' samples; in eval mode like any batch
    norm."""

    part: Part

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  (torch's name for it)
        """Accept any number of dimensions, as torch's own does."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name for it)
        if not self.training:
            return super().forward(input)
        normalise: Any = _Normalise.apply
        output, mean, variance, count = normalise(
            input, self.weight, self.bias, self.eps, self.part
        )
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


def convert(module: nn.Module, part: Part) -> None:
    """Make the batch norms of a model compute over all ranks; they stay the same objects, with
    their names."""
    for norm in module.modules():
        if type(norm) in PLAIN:
            norm.__class__ = SyncBatchNorm
            cast(SyncBatchNorm, norm).part = part


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, part: Part
    ) -> Any:
        exact = x if x.dtype == torch.float64 else x.float()
        mean, variance, count = _statistics(exact, part)
        if x.device.type == "cpu" and count.item() <= 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(x.shape)}"
            )
        scale = torch.rsqrt(variance + eps)
        normal = (exact - _along(mean, x)) * _along(scale, x)
        ctx.save_for_backward(normal, scale, weight, count)
        ctx.part = part
        ctx.has_bias = bias is not None
        output = normal
        if weight is not None:
            output = output * _along(weight, x)
        if bias is not None:
            output = output + _along(bias, x)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        normal, scale, weight, count = ctx.saved_tensors
        dims = _dims(grad)
        exact = grad.to(normal.dtype)
        of_bias = exact.sum(dims) if ctx.has_bias else None
        of_weight = None
        of_normal = exact
        if weight is not None:
            of_weight = (exact * normal).sum(dims).to(weight.dtype)
            of_normal = exact * _along(weight, grad)
        sums = torch.stack([of_normal.sum(dims), (of_normal * normal).sum(dims)])
        dist.all_reduce(sums, group=ctx.part.group)
        if ctx.part.counts:
            shift, slope = sums / count
            of_normal = of_normal - _along(shift, grad) - normal * _along(slope, grad)
        of_input = (of_normal * _along(scale, grad)).to(grad.dtype)
        return of_input, of_weight, of_bias, None, None


def _statistics(x: Tensor, part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over all ranks, and the number of values."""
    dims = _dims(x)
    channels = x.shape[1]
    own_count = x.numel() // channels if part.counts and channels else 0
    if own_count:
        variance, mean = torch.var_mean(x, dims, correction=0)
    else:
        variance = mean = x.new_zeros(channels)
    packed = torch.cat([mean, variance, x.new_full((1,), own_count)])
    parts = [torch.empty_like(packed) for _ in range(dist.get_world_size(part.group))]
    dist.all_gather(parts, packed, group=part.group)
    stacked = torch.stack(parts)
    means = stacked[:, :channels]
    variances = stacked[:, channels:-1]
    counts = stacked[:, -1:]
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / count
    return mean, variance, count


def _dims(x: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, x.dim())]


def _along(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1 for _ in range(like.dim() - 2)))


def own_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that may come to differ between ranks: not counters, nor the statistics of
    synchronised batch norms."""
    found = []
    for part in module.modules():
        if isinstance(part, SyncBatchNorm):
            continue
        for name, buffer in part.named_buffers(recurse=False):
            if name != "num_batches_tracked":
                found.append(buffer)
    return found
