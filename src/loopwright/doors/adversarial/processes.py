"""What several processes need: a runtime for all of them and one that acts for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...errors import ConfigurationError
from ...runtime import Runtime
from ...runtime.base import is_launched
from ...runtime.environment import Launch
from .config import Common

T = TypeVar("T")


def runtime_of(settings: Common) -> Runtime | str | None:
    """What a config asks to run on: all the processes there are, a device, or None for the best there is."""
    device = settings.device
    _check_device(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(
            f"common.device is {device!r}, and torch finds no such device here: use 'cpu', or 'auto' for the best "
            "there is."
        )
    if is_launched():
        from ...runtime.distributed import DistributedRuntime

        return DistributedRuntime("ddp", device=_own_device(settings), precision=settings.precision)
    if device == "cuda" and settings.gpu_ids:
        return f"cuda:{settings.gpu_ids[0]}"
    return None if device == "auto" else device


def _check_device(device: str) -> None:
    try:
        torch.device("cpu" if device == "auto" else device)
    except RuntimeError:
        raise ConfigurationError(
            f"common.device is {device!r}, which is no device: use 'auto' for the best there is, 'cpu', 'cuda', or one "
            "of several such as 'cuda:1'."
        ) from None


def _own_device(settings: Common) -> str | None:
    """This process's device; None for the accelerator with its number on its host."""
    device, ids = settings.device, settings.gpu_ids
    if device == "auto" or (device == "cuda" and len(ids) < 2):  # one id is what the default has
        return None
    if device != "cuda":
        if ":" in device:
            raise ConfigurationError(
                f"common.device is {device!r}, which is one device, and several processes were started: use "
                f"{device.partition(':')[0]!r}, with common.gpu_ids if not all are to be used."
            )
        return device
    launch = Launch.from_environment()
    own = 0 if launch is None else launch.local_rank
    if own >= len(ids):
        raise ConfigurationError(
            f"common.gpu_ids names {len(ids)} devices, and more processes were started on this machine: start "
            f"{len(ids)}, or name one device for each."
        )
    return f"cuda:{ids[own]}"


def by_first(runtime: Runtime, action: Callable[[], T]) -> T:
    """What an action of the first process gives, on all processes, which have to call this at once; or its error."""
    own: tuple[Any, Exception | None] = (None, None)
    if runtime.is_main:
        try:
            own = (action(), None)
        except Exception as raised:
            own = (None, raised)
    value: T
    value, error = runtime.broadcast_object(own)
    if error is not None:
        raise error
    return value
