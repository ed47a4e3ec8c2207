"""A few samples of a data set, looked at without any trace: to tell whether the data is still what it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Sized
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.data import Dataset

from .fetching import Fetcher
from .seeding import numpy_random

NUM_SAMPLES = 3
NUM_ROWS = 8  # of a data set that is tensors, where looking costs nothing
NO_COPIES = (type, ModuleType, FunctionType, MethodType, torch.nn.Module, torch.Tensor)
DEPTH = 4  # data sets in data sets, and what those call for every sample


def places(length: int, count: int) -> list[int]:
    """Indices spread evenly from the first to the last, and the first once more."""
    if length == 0:
        return []
    spread = sorted({number * (length - 1) // max(count - 1, 1) for number in range(count)})
    return [*spread, 0]


def peek_samples(fetcher: Fetcher) -> list[Any] | None:
    """Samples as the first epoch gives them, the first of them twice; None where they cannot be had like this.

    They come from a copy of the data set: no generator moves, and a file that is opened for the first sample is not
    open yet when workers are started.
    """
    if not isinstance(fetcher.dataset, Sized):
        return None
    try:
        own = fetcher.apart(_copied(fetcher.dataset))
        return [own.sample(index) for index in places(len(fetcher.dataset), NUM_SAMPLES)]
    except Exception:  # a data set that takes other indices, or none before its workers are started
        return None


def _copied(value: Any, depth: int = DEPTH) -> Any:
    """A data set whose own state may move: its attributes are new, the data they refer to is not copied."""
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, (random.Random, numpy_random().Generator, numpy_random().RandomState)):
        return copy.deepcopy(value)
    if depth == 0 or not (isinstance(value, Dataset) or _is_own(value)):
        return value
    if hasattr(value, "__del__"):
        raise TypeError(f"{type(value).__name__} ends something of its own when its copy goes")
    result = copy.copy(value)
    for name, part in vars(value).items():
        if isinstance(part, list) and len(part) <= 100:  # transforms, data sets that are joined
            vars(result)[name] = [_copied(item, depth - 1) for item in part]
        else:
            vars(result)[name] = _copied(part, depth - 1)
    return result


def _is_own(value: Any) -> bool:
    """Whether it is a plain object of Python: no class, function, module or something that torch keeps."""
    if not hasattr(value, "__dict__") or isinstance(value, NO_COPIES):
        return False
    kind: Any = type(value)
    return kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__ and callable(value)
