"""What a state tree may hold: nested containers of tensors, arrays and plain values, and nothing else."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..errors import CheckpointError

Tree: TypeAlias = Any  # nested dict, list, tuple; what it admits is decided by the encoder, not by types

ATOMS = frozenset({type(None), bool, int, float, str, bytes, complex})

TensorKey: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


def tensor_key(tensor: Tensor) -> TensorKey | None:
    """What two tensors have in common when they are one (tied weights); None where nothing is shared."""
    if tensor.numel() == 0:
        return None
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def plain_tensor(tensor: Tensor, path: str) -> Tensor:
    """The tensor without its graph, after refusing those that are not one dense block of memory."""
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise refusal(path, tensor, "run one batch through the lazy module before saving")
    if hasattr(type(tensor), "__tensor_flatten__"):
        raise refusal(path, tensor, "gather it to a plain tensor first (`full_tensor()` for a DTensor)")
    if tensor.layout is not torch.strided:
        raise refusal(path, tensor, "return `tensor.to_dense()`", f"a {tensor.layout} tensor")
    if tensor.is_meta:
        raise refusal(path, tensor, "materialise it first", "a tensor on the meta device")
    if tensor.is_quantized:
        raise refusal(path, tensor, "return `tensor.int_repr()` with its scale", "a quantized tensor")
    return tensor.detach()


def refusal(path: str, value: object, remedy: str, what: str | None = None) -> CheckpointError:
    """The error for a value that cannot be saved, naming where it is and what to return instead."""
    kind = what or f"an object of type {type(value).__module__}.{type(value).__qualname__}"
    return CheckpointError(f"The state at {path or 'the top'!r} is {kind}, which cannot be saved: {remedy}.")


def escape(component: str) -> str:
    """One component of a path, so that joining with "/" is never ambiguous and always valid UTF-8."""
    if component.isascii() and "%" not in component and "/" not in component:
        return component
    text = component.encode("utf-8", "replace").decode()
    return text.replace("%", "%25").replace("/", "%2F")


def unescape(component: str) -> str:
    """The inverse of `escape`."""
    return component.replace("%2F", "/").replace("%25", "%")
