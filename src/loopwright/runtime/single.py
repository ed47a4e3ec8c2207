"""One process on one device: placement of models and batches, precision, and what the device can do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..errors import ConfigurationError

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Runtime:
    """A device and a precision."""

    def __init__(self, device: str | torch.device | None = None, precision: str = "fp32") -> None:
        if precision not in _DTYPES:
            raise ConfigurationError(f"Unknown precision {precision!r}: use one of {', '.join(_DTYPES)}.")
        self.device = torch.device(device) if device is not None else detect_device()
        self.precision = precision
        self.is_host = self.device.type == "cpu"

    @property
    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes; a new one each time, since torch's must not be entered twice at once."""
        dtype = _DTYPES[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    @property
    def no_autocast(self) -> AbstractContextManager[Any] | None:
        """The context that takes backward passes out of `autocast`, where there is one."""
        return None if self.precision == "fp32" else torch.autocast(self.device.type, enabled=False)

    @property
    def reads_are_free(self) -> bool:
        """Whether reading a number from the device waits for nothing."""
        return self.is_host

    def build_scaler(self) -> torch.amp.GradScaler | None:
        """A loss scaler of its own for each optimizer, where the precision needs one."""
        return torch.amp.GradScaler(self.device.type) if self.precision == "fp16" else None

    def place(self, module: nn.Module) -> None:
        module.to(self.device)

    def move(self, batch: Any) -> Any:
        """The batch with every tensor in it on the device; containers keep their type."""
        return batch if self.is_host else move_to(batch, self.device)


def detect_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def move_to(value: Any, device: torch.device) -> Any:
    """Nested containers with their tensors moved; anything else is passed through."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        moved = {key: move_to(item, device) for key, item in value.items()}
        return moved if type(value) is dict else cast(Any, type(value))(moved)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_to(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(move_to(item, device) for item in value)
    return value


def resolve_runtime(given: Runtime | str | torch.device | None, precision: str) -> Runtime:
    """The runtime a trainer was asked for: an object, a device, or None for the best device there is."""
    if isinstance(given, Runtime):
        return given
    try:
        return Runtime(given, precision)
    except RuntimeError as error:
        raise ConfigurationError(f"runtime={given!r} is no device torch knows: {error}") from None
