"""A short text that is the same for the same values, to tell whether a run's data is still what it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTH = 16
MOST = 1 << 18  # values of one tensor that are looked at, evenly spread


def fingerprint(value: Any) -> str:
    """Of nested tensors, arrays, numbers and texts, by their content; of anything else, by its type."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()[:LENGTH]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        value = value.contiguous().flatten()[:: _stride(value.numel())].contiguous()
        digest.update(value.view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape} ".encode())
        if value.dtype == object:  # whose text may have addresses in it
            _add(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value.ravel()[:: _stride(value.size)]).tobytes())
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)} ".encode())
        for key in value:
            _add(digest, key)
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"sequence {len(value)} ".encode())
        for item in value:
            _add(digest, item)
    elif isinstance(value, (str, bytes, int, float, bool, complex, np.generic)) or value is None:
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _add(digest, {field.name: getattr(value, field.name) for field in fields(value)})
    else:
        digest.update(f"type {type(value).__module__}.{type(value).__qualname__} ".encode())


def _stride(size: int) -> int:
    return max(size // MOST, 1)
