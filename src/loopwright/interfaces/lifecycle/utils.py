"""Helpers of the published system, by their names: fewer batches, padding, and functions for some
processes only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from . import run_config
from .callbacks import LimitBatchesCallback, ModelEma

__all__ = [
    "LIMIT_BATCHES_ENV_VAR",
    "DataLoaderSlice",
    "LimitBatches",
    "ModelEma",
    "local_process_zero_first",
    "local_process_zero_only",
    "remove_padding",
    "worker_init_fn",
    "world_process_zero_only",
]

LIMIT_BATCHES_ENV_VAR = LimitBatchesCallback.ENVIRONMENT
P = ParamSpec("P")
T = TypeVar("T")


class LimitBatches:
    """Trainers that are made inside this context use only the first `num_batches` batches of every
    epoch."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = LimitBatchesCallback(num_batches).num_batches
        self._before: str | None = None

    def __enter__(self) -> LimitBatches:
        self._before = os.environ.get(LIMIT_BATCHES_ENV_VAR)
        os.environ[LIMIT_BATCHES_ENV_VAR] = str(self.num_batches)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is None:
            del os.environ[LIMIT_BATCHES_ENV_VAR]
        else:
            os.environ[LIMIT_BATCHES_ENV_VAR] = self._before


class DataLoaderSlice:
    """The first batches of a loader."""

    def __init__(self, dl: Iterable[Any], slice_size: int) -> None:
        self.dl = dl
        self.slice_size = slice_size

    def __iter__(self) -> Iterator[Any]:
        return islice(self.dl, self.slice_size)

    def __len__(self) -> int:
        return self.slice_size


def local_process_zero_only(func: Callable[P, T]) -> Callable[P, T | None]:
    """Call the function on the first process of each machine; the others wait for it and get
    None."""
    return _only(func, run_config.is_local_process_zero)


def world_process_zero_only(func: Callable[P, T]) -> Callable[P, T | None]:
    """Call the function on the first process of all; the others wait for it and get None."""
    return _only(func, run_config.is_world_process_zero)


def local_process_zero_first(func: Callable[P, T]) -> Callable[P, T]:
    """Call the function on the first process of each machine, and then on the others."""

    @wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not run_config.is_local_process_zero():
            _wait()
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        finally:
            _wait()

    return call


def _only(func: Callable[P, T], is_called: Callable[[], bool]) -> Callable[P, T | None]:
    @wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return func(*args, **kwargs) if is_called() else None
        finally:
            _wait()  # also after an exception, so that no process waits for ever

    return call


def _wait() -> None:
    if run_config.is_distributed():
        dist.barrier()


def remove_padding(padded_tensor: Tensor, pad_value: float) -> Tensor:
    """The rows that are not the padding value throughout."""
    is_padding = (padded_tensor == pad_value).reshape(padded_tensor.shape[0], -1).all(dim=1)
    return padded_tensor[~is_padding]


def worker_init_fn(worker_id: int) -> int:
    """A seed for a loader's worker. The loaders of a run do without: they seed every sample by
    epoch and index."""
    return torch.seed() + worker_id
