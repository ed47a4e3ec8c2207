"""Random generators: seeding them per sample, and saving and restoring them."""

from __future__ import annotations

import ctypes
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch

_default = torch.default_generator
_NUMPY_MASK = (1 << 32) - 1


def seed_sample(seed: int) -> None:
    """Seed what a data set may draw from: torch on the CPU, numpy, python.

    Not `torch.manual_seed`, which visits every device and costs 200 µs.
    """
    _default.manual_seed(seed)
    random.seed(seed)
    numpy_random().seed(seed & _NUMPY_MASK)


def seed_everything(seed: int) -> int:
    """Seed every generator of this process (python's, numpy's, torch's, those of devices), and return the seed.

    `Trainer(seed=)` covers what the trainer builds and draws; this is for what the program draws before.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without the milliseconds that torch spends on devices which are not there
        _default.manual_seed(seed)
    random.seed(seed)
    numpy_random().seed(seed & _NUMPY_MASK)
    return seed


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Leave torch's CPU generator, numpy's and python's as they were found."""
    torch_state, python_state = _default.get_state(), random.getstate()
    numpy_state = numpy_random().get_state()
    try:
        yield
    finally:
        _default.set_state(torch_state)
        random.setstate(python_state)
        numpy_random().set_state(numpy_state)


def rng_state() -> dict[str, Any]:
    """The state of every generator, as tensors, numbers and strings only."""
    state: dict[str, Any] = {
        "torch": _default.get_state(),
        "numpy": _numpy_state(),
        "python": _python_state(),
    }
    # a device that was never used has drawn nothing, and asking it would start it
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; devices that are not there any more are passed over."""
    _default.set_state(state["torch"])
    _set_numpy_state(state["numpy"])
    _set_python_state(state["python"])
    if "cuda" in state and torch.cuda.is_available():
        for device, device_state in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
            torch.cuda.set_rng_state(device_state, device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


@cache
def numpy_random() -> ModuleType:
    """`numpy.random`, imported on first use: torch imports numpy, but not this part of it, which takes 20 ms."""
    import numpy.random

    return numpy.random


def _numpy_state() -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = numpy_random().get_state()
    return {
        "kind": str(kind),
        "keys": torch.from_numpy(keys.astype("int64")),
        "position": int(position),
        "has_gauss": int(has_gauss),
        "gauss": float(gauss),
    }


def _set_numpy_state(state: dict[str, Any]) -> None:
    keys = state["keys"].numpy().astype("uint32")
    position, has_gauss, gauss = state["position"], state["has_gauss"], state["gauss"]
    numpy_random().set_state((state["kind"], keys, position, has_gauss, gauss))


def _python_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


def _set_python_state(state: dict[str, Any]) -> None:
    random.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))


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
