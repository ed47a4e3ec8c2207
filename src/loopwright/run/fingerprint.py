"""A short text that is the same for the same values, to tell whether a run's data is still what it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTH = 16


def fingerprint(value: Any) -> str:
    """Of nested tensors, arrays, numbers and texts, by their content; of anything else, by its type."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()[:LENGTH]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value).encode())
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
    else:
        digest.update(f"type {type(value).__module__}.{type(value).__qualname__} ".encode())
