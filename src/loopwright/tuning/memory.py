"""How much memory a step needs for its backward pass, how much there is, and whether it ran out."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

CGROUP = Path("/sys/fs/cgroup")


class SavedBytes:
    """Bytes that forward passes keep for the backward pass, each storage once, weights not among them."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self.total = 0
        self._seen = {_storage(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is kept while this lasts."""
        with torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor):
            yield

    def _note(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._seen:
            self._seen.add(storage)
            self.total += storage[1]
        return tensor


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Where the values of a tensor lie, and how many bytes that is; an address may be used again, for another size."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: of an accelerator, or of the machine, for which torch has no error of its own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def let_go(error: BaseException) -> None:
    """Give back what a failed step still holds."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def available_memory() -> int:
    """Bytes of the machine that can still be had, also by the limit of a container."""
    found = [_of_machine(), _of_container()]
    return min(amount for amount in found if amount is not None)


def _of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_container() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        return None if limit == "max" else max(int(limit) - int((CGROUP / "memory.current").read_text()), 0)
    except (OSError, ValueError):
        return None
