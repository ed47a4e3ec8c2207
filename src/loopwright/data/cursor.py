"""Reading an iterable item by item, with seeds, and its position where it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from enum import Enum
from hashlib import blake2b
from inspect import isgeneratorfunction
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import DataError
from .order import SAMPLE, WORKER, derive_seed
from .random import preserved_rng, seed_sample
from .stream import HasEpochs, Stateful
from .workers import WORKER_ERRORS, check_worker


class Randomness(Enum):
    """How the global generators are seeded while an iterable is iterated."""

    PER_ITEM = "seeded from (seed, epoch, number of the item)"
    PER_EPOCH = "seeded from (seed, epoch) when iteration starts"
    UNSEEDED = "not seeded"


class Cursor:
    """Reads items one by one, never in advance, and knows the position of the source where that has
    one.

    The position is that of the source itself, which then goes on from epoch to epoch, or that of
    its iterator, of which every epoch has its own.
    """

    def __init__(self, source: Iterable[Any], seed: int, randomness: Randomness) -> None:
        self.source = source
        self.is_exhausted = False
        self.remark: str | None = None
        self._own = accessors(source)
        self._seed = seed
        self._randomness = randomness
        self._epoch = 0
        self._items: Iterator[Any] | None = None
        self._may_be_exhausted = False
        self._is_saved = False
        self._is_placed = False  # whether a state was loaded since an iterator was opened
        self._check_at = 0  # the item after which the state is looked at
        self._first: str | None = None  # digest of the state after the epoch's first item
        self._loaded: str | None = None  # digest of the state that was loaded

    @property
    def spans_epochs(self) -> bool:
        return self._own is not None

    def start(self, epoch: int) -> None:
        self._epoch = epoch
        self._items = None
        self.is_exhausted = False
        self._may_be_exhausted = self.spans_epochs
        self._first = None
        self._check_at = 0
        set_epoch(self.source, epoch)

    def has_position(self) -> bool:
        """Whether the position can be read and set; if so, a state that cannot be saved is an error
        from now on."""
        found = self._accessors()
        if found is None and self._items is None and may_have_iterators_with_state(self.source):
            with preserved_rng():
                # and not kept: an epoch opens its own, after `set_epoch`
                found = accessors(iter(self.source))
        self._is_saved = found is not None
        return found is not None

    def state_dict(self) -> dict[str, Any]:
        found = self._accessors()
        is_over = self.is_exhausted and not self.spans_epochs
        state = {"is_exhausted": self.is_exhausted, "source": None}
        if found is not None and not is_over:
            state["source"] = deepcopy(found.read())
        more = {"first": self._first, "order": order_of_buffers(self.source)}
        return state | {name: value for name, value in more.items() if value is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved state, in an epoch that was started."""
        position = state["position"]
        self.remark = _note_on_workers(self.source)
        is_inside = bool(position) and not state["is_exhausted"]
        if is_inside and "order" in state:
            self._replay(state)
        elif is_inside or (self.spans_epochs and state["source"] is not None):
            self._restore(state, is_inside=is_inside)
        self.is_exhausted, self._first = state["is_exhausted"], state.get("first")
        self._may_be_exhausted = self.is_exhausted or not position

    def read(self, number: int) -> list[Any]:
        """Return a list of the item with this number in the epoch; an empty list at the end."""
        if self.is_exhausted:
            return []
        items = self._next(number)
        # a source saved at its end may give one empty iteration first
        if not items and self._may_be_exhausted:
            self._items = None
            items = self._next(number)
        self._may_be_exhausted = False
        self.is_exhausted = not items
        if number == self._check_at and items:
            self._check(number)
        return items

    def close(self) -> None:
        self._items = None

    def preserved_generators(self) -> AbstractContextManager[None]:
        """Context for reading: restores the global generators afterwards where items are seeded."""
        return preserved_rng() if self._randomness is Randomness.PER_ITEM else nullcontext()

    def _accessors(self) -> Accessors | None:
        return self._own or accessors(self._items)

    def _restore(self, state: dict[str, Any], *, is_inside: bool) -> None:
        if self._own is None:
            self._items = self._open()
        found = self._accessors()
        saved = state["source"]
        if found is None or saved is None:
            raise DataError(
                "position-without-state",
                f"{type(self.source).__name__} has no state now, or had none when the position was "
                "saved: resume with the same data, or start a new run.",
            )
        found.set(deepcopy(saved))
        self._is_placed = True
        if not is_inside:
            return
        if isinstance(self.source, Restarting) and self.source.restart_on_stop_iteration:
            # a state at the end of an epoch is not the next one's start
            self.source.restart_on_stop_iteration = False
            self._items = self._open()
            self.source.restart_on_stop_iteration = True
        self._loaded = digest(saved)
        self._check_at = -1 if _shows(found, self._loaded) else state["position"]

    def _replay(self, state: dict[str, Any]) -> None:
        """Read the epoch again up to the position, for a source with a shuffle buffer, which its
        state lacks."""
        name = type(self.source).__name__
        position = state["position"]
        if state["order"] != order_of_buffers(self.source):
            raise DataError(
                "order-differs",
                f"{name} is shuffled in a different order than when the position was saved: pass "
                "a seed to `shuffle`, `.shuffle(seed=0, buffer_size=...)`, and start a new run.",
            )
        with self.preserved_generators():
            for number in range(position):
                if not self._next(number):
                    raise DataError(
                        "data-got-shorter",
                        f"{name} gave only {number} of the {position} items that come before the "
                        "saved position: resume with the same data, or start a new run.",
                    )
        self.remark = (
            f"{position} items of {name} were read again to return to the saved position, because "
            "its state does not contain the examples in its shuffle buffer."
        )

    def _check(self, number: int) -> None:
        """Look at the state after an item: can it be saved, and was the state that was loaded taken
        over?"""
        self._check_at = -1
        found = self._accessors()
        if found is None:
            return
        try:
            state = found.read()
        except DataError:
            if self._is_saved:
                raise
            return
        now = digest(state)
        if number == 0:
            self._first = now
        elif now == self._first != self._loaded:
            raise DataError(
                "position-not-restored",
                f"{found.owner}.{found.set.__name__}() did not restore the position: after item "
                f"{number + 1} the state is the same as after the first item. Make it continue "
                "from the state that it receives, or start a new run.",
            )

    def _next(self, number: int) -> list[Any]:
        if self._items is None:
            self._items = self._open()
        if self._randomness is Randomness.PER_ITEM:
            seed_sample(derive_seed(self._seed, SAMPLE, self._epoch, number))
        try:
            return [next(self._items)]
        except StopIteration:
            return []
        except WORKER_ERRORS as error:
            check_worker(error, self._items)
            raise

    def _open(self) -> Iterator[Any]:
        """Return an iterator of this epoch; a node starts over, unless a state was loaded, which
        may be at its end."""
        is_placed = self._is_placed
        self._is_placed = False
        node = self.source
        if is_node(node) and not is_placed:
            node.reset()
        if self._randomness is Randomness.UNSEEDED:
            return iter(self.source)
        with preserved_rng():
            seed_sample(derive_seed(self._seed, WORKER, self._epoch))
            return iter(self.source)


def _note_on_workers(source: object) -> str | None:
    """What to say where a loader with workers continues: their generators are in no state."""
    if not (isinstance(source, DataLoader) and source.num_workers):
        return None
    return (
        f"{type(source).__name__} continues with the same samples, but the random numbers that "
        f"the data set draws in its {source.num_workers} workers differ from those of an "
        "uninterrupted run: its state does not contain the generators of the workers."
    )


def _shows(found: Accessors, loaded: str) -> bool:
    """Whether the state that was loaded can be read at once; many sources only show it with the
    next item."""
    try:
        return digest(found.get()) == loaded
    except Exception:  # of a method that works only after an item
        return False


# of `datasets`: where a data set holds others, and one whose state lacks what is in its buffer
INSIDE = ("dataset", "_ex_iterable", "ex_iterable", "ex_iterables")
BUFFER = "BufferShuffledExamplesIterable"


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
                "the position in the data cannot be saved. It must work after every item.",
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
