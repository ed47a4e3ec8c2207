"""How the position in an iterable is read and set: the protocols of loaders, iterators, nodes and
streams of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from inspect import isgeneratorfunction
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import DataError
from .stream import HasEpochs, Stateful

PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    Tensor,
    np.ndarray,
    np.generic,
    torch.dtype,
    torch.device,
    PurePath,
)
STORABLE = "numbers, strings, bytes, tensors, arrays, and dicts, lists and tuples of them"
# where a data set of `datasets` holds others
INSIDE = (
    "dataset",
    "_ex_iterable",
    "ex_iterable",
    "ex_iterables",
)
BUFFER = (
    "BufferShuffledExamplesIterable"  # of `datasets`: its state lacks the examples in the buffer
)


@runtime_checkable
class HasState(Protocol):
    """An iterator such as grain's, whose state is read and set by `get_state` and `set_state`."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> Any: ...


@runtime_checkable
class Resettable(Protocol):
    """A node such as torchdata's: an iterator that starts over, or at a state, by `reset`."""

    def state_dict(self) -> dict[str, Any]: ...
    def reset(self, initial_state: Any = None) -> Any: ...
    def __next__(self) -> Any: ...


@runtime_checkable
class Restarting(Protocol):
    """A loader such as torchdata's `Loader`, which starts over if it is opened with a state at its
    end."""

    restart_on_stop_iteration: bool


class Accessors(NamedTuple):
    """The functions that read and set a position, and the class that has them."""

    owner: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]

    def read(self) -> Any:
        """Return the state; an error of the user's method is raised with its name."""
        try:
            return self.get()
        except Exception as error:
            raise DataError(
                "position-not-saved",
                f"{self.owner}.{self.get.__name__}() failed ({type(error).__name__}: {error}), so "
                "the position in the data cannot be saved. It must work after every item, and "
                f"return {STORABLE}.",
            ) from error

    def read_storable(self) -> Any:
        """Return the state, which must be one that a checkpoint can hold."""
        state = self.read()
        if (problem := unstorable(state)) is not None:
            raise DataError(
                "position-not-saved",
                f"{self.owner}.{self.get.__name__}() returned a state that cannot be saved: "
                f"{problem}. Return {STORABLE}.",
            )
        return state

    def write(self, state: Any) -> None:
        """Set a state that was saved."""
        try:
            self.set(state)
        except Exception as error:
            raise DataError(
                "position-refused",
                f"{self.owner}.{self.set.__name__}() refused the saved position, a "
                f"{type(state).__name__} ({type(error).__name__}: {error}): resume with the same "
                "data, or start a new run.",
            ) from error


def accessors(owner: object) -> Accessors | None:
    """Return the functions that read and set the position of an object, by the protocol that it
    has."""
    name = type(owner).__name__
    if isinstance(owner, Stateful):
        return Accessors(name, owner.state_dict, owner.load_state_dict)
    if isinstance(owner, HasState):
        return Accessors(name, owner.get_state, owner.set_state)
    return Accessors(name, owner.state_dict, owner.reset) if is_node(owner) else None


def is_node(source: object) -> TypeGuard[Resettable]:
    """Whether `reset` is how a source starts an epoch and continues at a state."""
    return isinstance(source, Resettable) and not isinstance(source, Stateful | HasState)


def may_have_iterators_with_state(source: object) -> bool:
    """Whether an iterator may have a state, so that one must be opened to see: generators and
    loaders' have none."""
    iterate = getattr(type(source), "__iter__", None)
    is_own = iterate is not None and not isgeneratorfunction(iterate)
    return is_own and not isinstance(source, Iterator | DataLoader | list | tuple | Mapping)


def lacks_half(source: object) -> str:
    """Say which half of a pair of methods is missing; an empty text where both or none are
    there."""
    pairs = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
    missing = (
        b if hasattr(source, a) else a for a, b in pairs if hasattr(source, a) != hasattr(source, b)
    )
    return next((f" It lacks `{name}`." for name in missing), "")


def set_epoch(source: object, epoch: int) -> None:
    """Announce an epoch to a source, and to data set and sampler of a loader that iterates them
    itself."""
    parts = (
        (source, source.dataset, source.sampler) if isinstance(source, DataLoader) else (source,)
    )
    for part in parts:
        if is_streaming_dataset(part) and isinstance(part, Stateful):
            # otherwise each pass through the same epoch would begin where the last was loaded
            part.load_state_dict({})
        if isinstance(part, HasEpochs):
            part.set_epoch(epoch)


def is_streaming_dataset(source: object) -> bool:
    """Whether it is an `IterableDataset` of the package `datasets`."""
    return type(source).__module__.partition(".")[0] == "datasets" and isinstance(source, HasEpochs)


def shuffle_buffers(source: object) -> list[object]:
    """Return the parts of a data set of `datasets` that shuffle in a buffer, whose examples are in
    no state."""
    found = [source] if type(source).__name__ == BUFFER else []
    for name in INSIDE:
        inner = getattr(source, name, None)
        for part in inner if isinstance(inner, list) else [inner]:
            if type(part).__module__.partition(".")[0] == "datasets":
                found += shuffle_buffers(part)
    return found


def order_of_buffers(source: object) -> str | None:
    """Return a digest of the generators that shuffle buffers draw from; None without buffers."""
    buffers = shuffle_buffers(source)
    generators = [
        getattr(getattr(buffer, "generator", None), "bit_generator", None) for buffer in buffers
    ]
    return (
        digest([getattr(generator, "state", None) for generator in generators]) if buffers else None
    )


def unstorable(state: Any, path: str = "it") -> str | None:
    """Say which part of a state cannot be saved, and its type; None if all can."""
    if state is None or isinstance(state, PLAIN):
        return None
    if isinstance(state, Mapping):
        parts = [(f"{path}[{key!r}]", part) for key, part in state.items()]
    elif isinstance(state, list | tuple):
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(state)]
    else:
        return f"{path} is a {type(state).__name__}"
    return next(
        (problem for name, part in parts if (problem := unstorable(part, name)) is not None), None
    )


def digest(state: Any) -> str:
    """Return a short text that is the same for equal states."""
    return blake2b(repr(_readable(state)).encode(), digest_size=8).hexdigest()


def _readable(state: Any) -> Any:
    """Return the state with the bytes of tensors and arrays, of which `repr` shows a part only."""
    if isinstance(state, Tensor):
        rows = state.detach().cpu().reshape(-1).view(torch.uint8)
        return str(state.dtype), tuple(state.shape), rows.numpy().tobytes()
    if isinstance(state, np.ndarray):
        return str(state.dtype), state.shape, state.tobytes()
    if isinstance(state, Mapping):
        return {key: _readable(part) for key, part in state.items()}
    return [_readable(part) for part in state] if isinstance(state, list | tuple) else state
