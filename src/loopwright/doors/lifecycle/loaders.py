"""The loaders of a run as its stages get them: whoever iterates one takes the steps of the one loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from .core import Core


class PreparedLoader:
    """Another loader's batches, on the device, in the order that the seed and the epoch say.

    Whatever else is asked of it is the other loader's.
    """

    is_training: bool

    def __init__(self, core: Core, loader: Any) -> None:
        self.core, self.loader = core, loader

    def __len__(self) -> int:
        length = self.core.stream(self.loader, is_training=self.is_training).num_batches
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} over data without a length has no length.")
        return length

    def __getattr__(self, name: str) -> Any:
        if name in ("core", "loader"):
            raise AttributeError(name)  # before `__init__`, as when it is copied
        return getattr(self.loader, name)


class TrainingLoader(PreparedLoader):
    """Each batch that is taken from it is a step of the training run."""

    is_training = True

    def __iter__(self) -> Iterator[Any]:
        return self.core.training_batches(self)


class EvaluationLoader(PreparedLoader):
    """Batches for an evaluation of one's own: in eval mode and without gradients until they are through."""

    is_training = False

    def __iter__(self) -> Iterator[Any]:
        return self.core.evaluation_batches(self)


def prepared(core: Core, loader: Any, kind: type[PreparedLoader]) -> Any:
    """The loader with the run's accounting around it, unless it has that already, perhaps inside."""
    own = inner_of(loader)
    if own is None:
        return kind(core, loader)
    if own is loader and own.core is not core:
        return kind(core, own.loader)
    return loader


def inner_of(loader: Any) -> PreparedLoader | None:
    """The prepared loader that this is, or that it holds, as a slice of a loader does."""
    if isinstance(loader, PreparedLoader):
        return loader
    if isinstance(loader, DataLoader):
        return None
    held = vars(loader).values() if hasattr(loader, "__dict__") else ()
    return next((value for value in held if isinstance(value, PreparedLoader)), None)


def length_of(loader: Iterable[Any] | None) -> int | None:
    """The number of batches, where that is known."""
    try:
        return None if loader is None else len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None
