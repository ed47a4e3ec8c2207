"""Tensors in groups that one operation can take together: whole ones, and those spread over the same processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)


def spread_of(tensor: Tensor) -> Any:
    """The processes that a tensor is spread over; None for a whole one."""
    module = sys.modules.get("torch.distributed.tensor")  # until somebody imports it, there can be no such tensor
    kind = getattr(module, "DTensor", None)
    return tensor.device_mesh if kind is not None and isinstance(tensor, kind) else None


def alike(tensors: Iterable[T]) -> list[list[T]]:
    """The tensors by what they are spread over, each group in its order."""
    groups: dict[Any, list[T]] = {}
    for tensor in tensors:
        groups.setdefault(spread_of(tensor), []).append(tensor)
    return list(groups.values())


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of one that is spread over processes, each of which has to ask."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def clip_norm(params: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradients by the norm of all of them together, and return that."""
    groups = alike(p for p in params if p.grad is not None)
    if len(groups) <= 1:
        return whole(nn.utils.clip_grad_norm_(params, max_norm))
    norms = [whole(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups]
    total = nn.utils.get_total_norm(norms)
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total
