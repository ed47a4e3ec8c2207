"""Collectives of host objects, and of tensors whose shapes differ between ranks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ..errors import DataError

SHORT = 4096  # bytes of a pickled object that are sent together with its length


def gather_pickled(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """Every rank's value, by rank; in one collective where all are short, otherwise in two."""
    own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sent = torch.zeros(8 + SHORT, dtype=torch.uint8)
    sent[:8].view(torch.int64)[0] = own.numel()
    sent[8 : 8 + own.numel()] = own[:SHORT]
    received = _all_gather(sent, group)
    sizes = received[:, :8].contiguous().view(torch.int64).flatten().tolist()
    parts = received[:, 8:]
    if max(sizes) > SHORT:
        parts = _all_gather(pad(own, (0, max(sizes) - own.numel())), group)
    return [
        pickle.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)
    ]


def _all_gather(sent: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = sent.new_empty(group.size(), sent.numel())
    dist.all_gather(list(received), sent, group=group)
    return received


def gather_tensors(
    tensor: Tensor,
    shapes: Sequence[tuple[tuple[int, ...], torch.dtype]],
    padding_value: float | None,
) -> Tensor:
    """Concatenate all ranks' tensors along the first dimension, the other dimensions padded to the
    largest."""
    common = _common_shape(shapes, padding_value)
    parts = _exchange(tensor, [shape or (1,) for shape, _ in shapes])
    return torch.cat([_fill(part, common, padding_value) for part in parts])


def _common_shape(
    shapes: Sequence[tuple[tuple[int, ...], torch.dtype]], padding_value: float | None
) -> tuple[int, ...]:
    """The largest of each dimension but the first. Every rank finds the same mistakes, so all raise
    together."""
    dtypes = [dtype for _, dtype in shapes]
    if len(set(dtypes)) > 1:
        raise DataError(
            "gather-mismatch",
            f"gather: dtypes differ between ranks: {_by_rank(dtypes)}. Convert them to one dtype.",
        )
    rests = [shape[1:] for shape, _ in shapes]
    if len({len(shape) for shape, _ in shapes}) > 1:
        raise DataError(
            "gather-mismatch",
            "gather: the number of dimensions differs between ranks: "
            f"{_by_rank([shape for shape, _ in shapes])}. Reshape them to the same number of "
            "dimensions.",
        )
    if len(set(rests)) > 1 and padding_value is None:
        raise DataError(
            "gather-mismatch",
            "gather: only the first dimension may differ between ranks, but the shapes are "
            f"{_by_rank([shape for shape, _ in shapes])}. Pass padding_value= to fill up to the "
            "largest.",
        )
    return tuple(max(sizes) for sizes in zip(*rests, strict=True))


def _by_rank(values: Sequence[object]) -> str:
    return ", ".join(f"rank {rank} {value}" for rank, value in enumerate(values))


def _exchange(tensor: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Each rank's tensor in its own shape. Sent as bytes, since not every backend knows every
    dtype."""
    own = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    sizes = [prod(shape) * tensor.element_size() for shape in shapes]
    sent = own.new_zeros(max(sizes))
    sent[: own.numel()] = own
    received = [torch.empty_like(sent) for _ in shapes]
    if sent.numel():
        dist.all_gather(received, sent)
    return [
        part[:size].clone().view(tensor.dtype).reshape(shape)
        for part, size, shape in zip(received, sizes, shapes, strict=True)
    ]


def _fill(part: Tensor, common: tuple[int, ...], padding_value: float | None) -> Tensor:
    missing = [size - own for size, own in zip(common, part.shape[1:], strict=True)]
    if not any(missing):
        return part
    return pad(part, [n for size in reversed(missing) for n in (0, size)], value=padding_value)
