"""The global random generators: seeding, saving, restoring, and tracking which of them data draws from."""

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
    """Seed the generators that a data set may draw from: torch's CPU generator, numpy's and python's.

    `torch.manual_seed` would visit every device, which costs 200 µs.
    """
    _default.manual_seed(seed)
    random.seed(seed)
    numpy_random().seed(seed & _NUMPY_MASK)


def seed_everything(seed: int) -> int:
    """Seed every global generator of this process: python's, numpy's, torch's, on all devices.

    `Trainer(seed=)` covers everything that the trainer builds and draws; call this for random numbers that the program
    draws before, such as a model's initial weights.

    Args:
        seed: A whole number, 0 or more.

    Returns:
        The seed.

    >>> import loopwright, torch
    >>> loopwright.seed_everything(7)
    7
    >>> first = torch.rand(3)
    >>> _ = loopwright.seed_everything(7)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without the milliseconds that torch spends looking for devices
        _default.manual_seed(seed)
    random.seed(seed)
    numpy_random().seed(seed & _NUMPY_MASK)
    return seed


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore torch's CPU generator, numpy's and python's on leaving the block."""
    torch_state, python_state = _default.get_state(), random.getstate()
    numpy_state = numpy_random().get_state()
    try:
        yield
    finally:
        _default.set_state(torch_state)
        random.setstate(python_state)
        numpy_random().set_state(numpy_state)


def rng_state() -> dict[str, Any]:
    """Return the state of every global generator as tensors, numbers and strings only."""
    state: dict[str, Any] = {
        "torch": _default.get_state(),
        "numpy": _numpy_state(),
        "python": _python_state(),
    }
    # an unused device has drawn nothing, and reading its state would initialize it
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore a state from `rng_state`; devices that do not exist any more are skipped."""
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
    """Return `numpy.random`, imported on first use: it takes 20 ms, and torch does not import it."""
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


Result = TypeVar("Result")

_MT19937_BYTES = 625 * 4  # the state words of numpy's default generator and its position in them


class GlobalGenerator(Protocol):
    """One of the global random generators."""

    def state(self) -> Any: ...
    def has_moved(self, state: Any) -> bool: ...
    def restore(self, state: Any) -> None: ...
    def seed(self, seed: int) -> None: ...


class TorchGenerator:
    def state(self) -> Any:
        return torch.default_generator.get_state()

    def has_moved(self, state: Any) -> bool:
        return not torch.equal(state, torch.default_generator.get_state())

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(state)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


class PythonGenerator:
    def state(self) -> Any:
        return random.getstate()

    def has_moved(self, state: Any) -> bool:
        return bool(state != random.getstate())

    def restore(self, state: Any) -> None:
        random.setstate(state)

    def seed(self, seed: int) -> None:
        random.seed(seed)


class NumpyGenerator:
    """numpy's global generator. Reading its state takes 40 µs, so its memory is compared where possible."""

    def __init__(self) -> None:
        self._state: Any = None
        self._memory = b""

    def state(self) -> Any:
        memory = _numpy_memory()
        if not memory or memory != self._memory or self._state["has_gauss"]:
            self._state, self._memory = numpy_random().get_state(legacy=False), memory
        return self._state

    def has_moved(self, state: Any) -> bool:
        if self._memory and not state["has_gauss"]:  # the second gaussian of a pair is in other memory
            return _numpy_memory() != self._memory
        return pickle.dumps(numpy_random().get_state(legacy=False)) != pickle.dumps(state)

    def restore(self, state: Any) -> None:
        numpy_random().set_state(state)

    def seed(self, seed: int) -> None:
        numpy_random().seed(seed & 0xFFFFFFFF)


def _numpy_memory() -> bytes:
    generator = numpy_random().get_bit_generator()
    if type(generator) is not numpy_random().MT19937:  # user code replaced it
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


_GENERATORS: tuple[GlobalGenerator, ...] = (TorchGenerator(), PythonGenerator(), NumpyGenerator())


class RngTracker:
    """Tracks which global generators some code draws from, seeds only these, and restores all of them.

    Seeding a generator costs more than fetching a small sample, and most data sets use none or one of the three.
    """

    def __init__(self) -> None:
        self._drawn: list[int] = []

    def __bool__(self) -> bool:
        """Whether any generator has been drawn from so far."""
        return bool(self._drawn)

    def seed(self, seed: int) -> None:
        for number in self._drawn:
            _GENERATORS[number].seed(seed)

    def run(self, build: Callable[[], Result]) -> Result:
        """Return the result of `build`, which is called again if it drew from a generator that was not seeded."""
        states = [generator.state() for generator in _GENERATORS]
        try:
            result = build()
            while self._find_drawn(states):
                result = build()
        except BaseException:
            self._restore(states, range(len(_GENERATORS)))
            raise
        self._restore(states, self._drawn)
        return result

    def _find_drawn(self, states: list[Any]) -> bool:
        watched = [number for number in range(len(_GENERATORS)) if number not in self._drawn]
        moved = [number for number in watched if _GENERATORS[number].has_moved(states[number])]
        self._drawn += moved
        return bool(moved)

    def _restore(self, states: list[Any], numbers: Iterable[int]) -> None:
        for number in numbers:
            _GENERATORS[number].restore(states[number])
