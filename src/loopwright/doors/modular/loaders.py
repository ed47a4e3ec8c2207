"""`self.train_loader` and `self.val_loader`: the user's loaders, iterated the trainer's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Loader:
    """Gives batches on the device, and each process its part of them; all else is as on the loader behind it."""

    def __init__(self, loader: Any, iterate: Callable[[], Iterator[Any]], measure: Callable[[], int | None]) -> None:
        self.loader = loader
        self._iterate = iterate
        self._measure = measure

    def __iter__(self) -> Iterator[Any]:
        return self._iterate()

    def __len__(self) -> int:
        """Batches in an epoch, as this process sees them."""
        length = self._measure()
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return length

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)
