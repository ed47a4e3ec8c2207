"""Everything about a trainer and its data that can be seen from outside and is not part of a checkpoint."""

from __future__ import annotations

import dis
import random
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from inspect import unwrap
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from ..callback import Callback
from ..checkpoint.tree import ATOMS
from ..trainer import Trainer

LARGEST = 1 << 22  # values of a tensor that are kept; of a larger one, a digest
SEEN_ELSEWHERE = (Optimizer, nn.Module, Trainer)
TORCH_OWN = (Dataset, DataLoader, Sampler)


def observe(trainer: Trainer, data: Any) -> dict[str, Any]:
    """A tree of values: what the data, the callbacks, the models and the trainer keep beside their saved state."""
    return {
        "data": _Look().at(data),
        "callbacks": {name: _Look().inside(callback) for name, callback in _own_callbacks(trainer).items()},
        "models": {name: _unsaved_of(module) for name, module in trainer.modules.items()},
        "trainer": _Look().inside(trainer) | {"loss_fn": _Look().at(trainer.loss_fn)},
    }


def _own_callbacks(trainer: Trainer) -> dict[str, Callback]:
    """Those the user wrote; ours know what they have to save."""
    own = [callback for callback in trainer.run.callbacks if not _is_ours(type(callback))]
    return {f"{type(c).__name__}{f'-{i}' if i else ''}": c for i, c in enumerate(own)}


def _unsaved_of(model: nn.Module) -> dict[str, Any]:
    """Buffers that are not persistent, and plain attributes of all modules."""
    saved = model.state_dict(keep_vars=True).keys()
    found: dict[str, Any] = {
        name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers() if name not in saved
    }
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                found[f"{path}.{name}" if path else name] = _Look().at(value)
    return found


class _Look:
    """Values as they are now, however deep they are kept; nothing is looked at twice."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def at(self, value: Any) -> Any:
        if type(value) in ATOMS:
            return value
        if isinstance(value, Tensor):
            return _kept(value.detach().cpu())
        if isinstance(value, np.ndarray):
            return value.copy() if value.dtype != object else None
        if (state := _state_of_generator(value)) is not None:
            return state
        if id(value) in self._seen:
            return None
        self._seen.add(id(value))
        if isinstance(value, Mapping):
            return {str(key): self.at(item) for key, item in value.items()}
        if isinstance(value, list | tuple | deque):
            return [self.at(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        return self.inside(value) if _has_own_state(value) else None

    def inside(self, value: Any) -> dict[str, Any]:
        """The attributes of an object, but for those that classes of ours or of torch keep for themselves."""
        hidden = _names_of_library(type(value))
        is_torch = type(value).__module__.startswith("torch.")
        attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in hidden}
        return {k: self.at(v) for k, v in attributes.items() if not (is_torch and k.startswith("_"))}


def _kept(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return None
    if tensor.numel() <= LARGEST:
        return tensor.clone()
    values = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return f"{tuple(tensor.shape)} {blake2b(values, digest_size=8).hexdigest()}"


def _state_of_generator(value: Any) -> Any:
    """The state of a random generator of torch, numpy or python, as one value."""
    if isinstance(value, torch.Generator):
        return _Generator(value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return _Generator(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _Generator(repr(value.get_state(legacy=False)).encode())
    return _Generator(repr(value.getstate()).encode()) if isinstance(value, random.Random) else None


class _Generator(str):
    """A generator, by a digest of its state."""

    __slots__ = ()

    def __new__(cls, state: bytes) -> _Generator:
        return super().__new__(cls, f"generator in state {blake2b(state, digest_size=4).hexdigest()}")

    def __repr__(self) -> str:
        return str(self)


def _has_own_state(value: Any) -> bool:
    """Whether to look inside: objects of the user's classes, and torch's around data sets."""
    if isinstance(value, (type, *SEEN_ELSEWHERE)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, TORCH_OWN):
        return True
    home = type(value).__module__.partition(".")[0]
    return not callable(getattr(value, "__get__", None)) and home not in (
        "torch",
        "numpy",
        "loopwright",
        "builtins",
        "functools",
    )


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "loopwright"


def _names_of_library(kind: type) -> set[str]:
    """Attributes that methods of our own classes set."""
    members = (member for base in kind.__mro__ if _is_ours(base) for member in vars(base).values())
    codes = (unwrap(member).__code__ for member in members if isinstance(member, FunctionType))
    return {step.argval for code in codes for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
