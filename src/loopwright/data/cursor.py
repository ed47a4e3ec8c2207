"""Reading an iterable item by item, with seeds, and its position where it has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from enum import Enum
from typing import Any

from torch.utils.data import DataLoader

from ..errors import DataError
from .order import SAMPLE, WORKER, derive_seed
from .positions import (
    Accessors,
    Restarting,
    accessors,
    digest,
    is_node,
    may_have_iterators_with_state,
    order_of_buffers,
    set_epoch,
)
from .random import preserved_rng, seed_sample
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
        elif state["source"] is not None and (is_inside or self.spans_epochs):
            self._restore(state, is_inside=is_inside)
        elif is_inside:
            raise DataError(
                "position-without-state",
                f"The saved position has no state of {type(self.source).__name__}, which had no "
                "state when it was saved: start a new run.",
            )
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
        if found is None:
            raise DataError(
                "position-without-state",
                f"The saved position is the state of an iterator of {type(self.source).__name__}, "
                "but its iterators now have no state: resume with the same data, or start a new "
                "run.",
            )
        found.write(deepcopy(saved))
        self._is_placed = True
        if not is_inside:
            return
        if isinstance(self.source, Restarting) and self.source.restart_on_stop_iteration:
            self.source.restart_on_stop_iteration = (
                False  # a state at the end of an epoch is not the next one's start
            )
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
            state = found.read_storable()
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
            check_worker(error)
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
