"""Finding out which generators a data set draws from, so that only those are seeded for every sample.

Seeding all three costs 9 µs a sample, several times what a simple data set needs to fetch it. So generators are
watched instead: what did not move during a batch was not drawn from, and its seed could not have mattered. When
one moves for the first time, the batch is made again with that generator seeded, and it stays seeded.
"""

import ctypes
import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import torch

from .seeding import numpy_random

Made = TypeVar("Made")

_MT19937_BYTES = 625 * 4  # the words of numpy's default generator and its place in them


class Source(Protocol):
    """One global generator."""

    def state(self) -> Any: ...
    def has_moved(self, state: Any) -> bool: ...
    def restore(self, state: Any) -> None: ...
    def seed(self, seed: int) -> None: ...


class TorchSource:
    def state(self) -> Any:
        return torch.default_generator.get_state()

    def has_moved(self, state: Any) -> bool:
        return not torch.equal(state, torch.default_generator.get_state())

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(state)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


class PythonSource:
    def state(self) -> Any:
        return random.getstate()

    def has_moved(self, state: Any) -> bool:
        return bool(state != random.getstate())

    def restore(self, state: Any) -> None:
        random.setstate(state)

    def seed(self, seed: int) -> None:
        random.seed(seed)


class NumpySource:
    """numpy's global generator; its state takes 40 µs to ask for, so its memory is compared where that is enough."""

    def __init__(self) -> None:
        self._state: Any = None
        self._memory = b""

    def state(self) -> Any:
        memory = _numpy_memory()
        if not memory or memory != self._memory or self._state["has_gauss"]:
            self._state, self._memory = numpy_random().get_state(legacy=False), memory
        return self._state

    def has_moved(self, state: Any) -> bool:
        if self._memory and not state["has_gauss"]:  # half a pair of gaussians is kept in other memory
            return _numpy_memory() != self._memory
        return pickle.dumps(numpy_random().get_state(legacy=False)) != pickle.dumps(state)

    def restore(self, state: Any) -> None:
        numpy_random().set_state(state)

    def seed(self, seed: int) -> None:
        numpy_random().seed(seed & 0xFFFFFFFF)


def _numpy_memory() -> bytes:
    generator = numpy_random().get_bit_generator()
    if type(generator) is not numpy_random().MT19937:  # somebody put another one there
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


_SOURCES: tuple[Source, ...] = (TorchSource(), PythonSource(), NumpySource())


class Draws:
    """Makes batches with the right generators seeded, and leaves all of them as they were."""

    def __init__(self) -> None:
        self._drawn: list[int] = []

    def __bool__(self) -> bool:
        """Whether anything has been drawn so far, so that there is something to seed."""
        return bool(self._drawn)

    def seed(self, seed: int) -> None:
        for number in self._drawn:
            _SOURCES[number].seed(seed)

    def make(self, build: Callable[[], Made]) -> Made:
        """What `build` returns, built again when it drew from a generator that it had not seeded."""
        states = [source.state() for source in _SOURCES]
        try:
            made = build()
            while self._learn(states):
                made = build()
        except BaseException:
            self._restore(states, range(len(_SOURCES)))
            raise
        self._restore(states, self._drawn)
        return made

    def _learn(self, states: list[Any]) -> bool:
        watched = [number for number in range(len(_SOURCES)) if number not in self._drawn]
        moved = [number for number in watched if _SOURCES[number].has_moved(states[number])]
        self._drawn += moved
        return bool(moved)

    def _restore(self, states: list[Any], numbers: Iterable[int]) -> None:
        for number in numbers:
            _SOURCES[number].restore(states[number])
