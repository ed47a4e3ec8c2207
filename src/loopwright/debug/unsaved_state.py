"""State of a trainer, its callbacks, models and data that is visible in attributes and is not part
of a checkpoint."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Collection, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from ..callback import Callback, named_by_class
from ..checkpoint.tensors import ATOMS
from ..trainer import Trainer

# values of a tensor that are copied; a larger tensor is represented by a digest
MAX_VALUES = 1 << 22
COMPONENTS = (Optimizer, nn.Module, Trainer)  # saved, or listed on their own
DATA_CLASSES = (Dataset, DataLoader, Sampler)
# whose objects are not searched
LIBRARIES = (
    "torch",
    "numpy",
    "loopwright",
    "builtins",
    "functools",
)
# results of shipped callbacks, measured for the user to read
RESULTS = frozenset(("latest", "statistics"))


def unsaved_state(trainer: Trainer, data: Any) -> dict[str, Any]:
    """Collect the attributes of data, callbacks, models and the trainer that their saved state does
    not include.

    Attributes of the library itself are left out: of the trainer, the attributes that a plain
    `Trainer` has; of a subclass of a shipped callback, constructor options, private attributes and
    `RESULTS`.
    """
    return {
        "data": _Reader().value(data),
        "callbacks": {
            name: _Reader().attributes(callback, _library_attributes(type(callback), callback))
            for name, callback in _user_callbacks(trainer).items()
        },
        "models": {name: _unsaved_of(module) for name, module in trainer.modules.items()},
        "trainer": _Reader().attributes(trainer, _trainer_attributes(trainer))
        | {"loss_fn": _Reader().value(trainer.loss_fn)},
    }


def _trainer_attributes(trainer: Trainer) -> frozenset[str]:
    """The attributes of a plain trainer, and the private ones of the engine of an interface, which
    saves its own state."""
    private = (
        {name for name in vars(trainer) if name.startswith("_")}
        if _is_shipped(type(trainer))
        else set()
    )
    return _plain_attributes().union(private)


@cache
def _plain_attributes() -> frozenset[str]:
    return frozenset(vars(Trainer(nn.Identity(), progress="silent")))


def _library_attributes(kind: type, callback: Callback) -> frozenset[str]:
    """The attributes that a shipped base class of a user's callback sets; none if it derives from
    `Callback` alone."""
    shipped = [base for base in kind.__mro__ if _is_shipped(base) and base is not Callback]
    if not shipped:
        return frozenset()
    options = {name for base in shipped for name in inspect.signature(base).parameters}
    private = {name for name in vars(callback) if name.startswith("_")}
    return RESULTS.union(options, private)


def _user_callbacks(trainer: Trainer) -> dict[str, Callback]:
    """The callbacks of classes that the user wrote, by class name; shipped callbacks save their
    state themselves."""
    return named_by_class(c for c in trainer.run.callbacks if not _is_shipped(type(c)))


def _is_shipped(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "loopwright"


def _unsaved_of(model: nn.Module) -> dict[str, Any]:
    """Buffers that are not persistent, and public attributes of all modules."""
    saved = model.state_dict(keep_vars=True).keys()
    found: dict[str, Any] = {
        name: buffer.detach().cpu().clone()
        for name, buffer in model.named_buffers()
        if name not in saved
    }
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                found[f"{path}.{name}" if path else name] = _Reader().value(value)
    return found


class _Reader:
    """Copies values at any depth into a tree of plain values; an object that was read before is
    None."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def value(self, value: Any) -> Any:
        if type(value) in ATOMS:
            return value
        if isinstance(value, Tensor):
            return _copied(value.detach().cpu())
        if isinstance(value, np.ndarray):
            return value.copy() if value.dtype != object else None
        if (state := _generator_state(value)) is not None:
            return state
        if id(value) in self._seen:
            return None
        self._seen.add(id(value))
        if isinstance(value, Mapping):
            return {str(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple | deque):
            return [self.value(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        return self.attributes(value) if _is_searched(value) else None

    def attributes(self, value: Any, excluded: Collection[str] = ()) -> dict[str, Any]:
        """Read the attributes of an object, except the excluded ones and private ones of torch's
        own classes."""
        is_torch = type(value).__module__.startswith("torch.")
        names = [name for name in getattr(value, "__dict__", {}) if name not in excluded]
        return {
            name: self.value(vars(value)[name])
            for name in names
            if not (is_torch and name.startswith("_"))
        }


def _copied(tensor: Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return None
    if tensor.numel() <= MAX_VALUES:
        return tensor.clone()
    values = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return f"{tuple(tensor.shape)} {blake2b(values, digest_size=8).hexdigest()}"


def _generator_state(value: Any) -> str | None:
    """A digest of the state of a random generator of torch, numpy or python; None for any other
    object."""
    if isinstance(value, torch.Generator):
        state: Any = value.get_state().tolist()
    elif isinstance(value, np.random.Generator):
        state = value.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        state = value.get_state()
    elif isinstance(value, random.Random):
        state = value.getstate()
    else:
        return None
    return f"generator in state {blake2b(repr(state).encode(), digest_size=4).hexdigest()}"


def _is_searched(value: Any) -> bool:
    """Whether to read the attributes of an object: of users' classes, and of torch's classes around
    data sets."""
    if isinstance(value, (type, *COMPONENTS)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, DATA_CLASSES):
        return True
    return (
        not callable(getattr(value, "__get__", None))
        and type(value).__module__.partition(".")[0] not in LIBRARIES
    )
