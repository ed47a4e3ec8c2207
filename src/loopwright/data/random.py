"""The global random generators: seeding, saving, restoring, and tracking which of them data draws
from."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import c_char
from functools import cache, partial
from struct import unpack
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch

from ..errors import public

_default = torch.default_generator
_NUMPY_MASK = (1 << 32) - 1


class Seed(NamedTuple):
    """The seed of a run, and where it is from, as `run.json` has it."""

    value: int | None
    source: Literal["argument", "seed_everything", "default"] = "argument"


_last = Seed(0, "default")  # of the last `seed_everything` in this process


def resolve_seed(given: int | Literal["auto"] | None) -> Seed:
    """Return the seed that was given; "auto" is that of the last `seed_everything` in this process,
    else 0."""
    return _last if given == "auto" else Seed(given)


def seed_sample(seed: int) -> None:
    """Seed the generators that a data set may draw from: torch's CPU generator, numpy's and
    python's.

    `torch.manual_seed` would visit every device, which costs 200 µs.
    """
    _default.manual_seed(seed)
    random.seed(seed)
    numpy_random().seed(seed & _NUMPY_MASK)


@public
def seed_everything(seed: int) -> int:
    """Seed every global generator of this process: python's, numpy's, torch's, on all devices.

    Call it for random numbers that the program draws itself, such as a model's initial weights. A
    trainer without a `seed` of its own takes this one for everything that it builds and draws.

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
    global _last
    seed_generators(seed)
    _last = Seed(seed, "seed_everything")
    return seed


def seed_generators(seed: int) -> None:
    """Do what `seed_everything` does, for the library itself: no trainer takes this seed."""
    seed_sample(seed)
    if torch.accelerator.is_available():  # else torch spends milliseconds looking
        torch.manual_seed(seed)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore torch's CPU generator, numpy's and python's on leaving the block."""
    torch_state = _default.get_state()
    python_state = random.getstate()
    numpy_state = numpy_random().get_state()
    try:
        yield
    finally:
        _default.set_state(torch_state)
        random.setstate(python_state)
        numpy_random().set_state(numpy_state)


@contextmanager
def all_preserved() -> Iterator[dict[str, Any]]:
    """Restore every global generator on leaving the block, those of devices too; gives their
    state."""
    before = rng_state()
    try:
        yield before
    finally:
        set_rng_state(before)


class OwnGenerators:
    """The random numbers of a run, apart from those of the program that calls it.

    In a call the global generators are those of the run; between two calls the run keeps their
    state here, and the program has its own again. The first call begins where the program's
    generators are.
    """

    def __init__(self) -> None:
        self.are_in_use = False
        self._kept: dict[str, Any] | None = None  # between two calls
        self._program_seed = 0  # of torch's generator, when the state was kept

    @contextmanager
    def in_use(self, *, follows_program: bool) -> Iterator[None]:
        """Context of a call. With `follows_program`, a `torch.manual_seed` between two calls counts
        for the second."""
        if self.are_in_use:
            yield
            return
        program_seed = _default.initial_seed()
        with all_preserved():
            if self._kept is not None and not (
                follows_program and program_seed != self._program_seed
            ):
                set_rng_state(self._kept)
            self.are_in_use = True
            try:
                yield
            finally:
                self.are_in_use = False
                self._kept = rng_state()
                self._program_seed = program_seed

    def of_program(self) -> AbstractContextManager[Any]:
        """Context after which the program's generators are as before; in a call of the run it does
        nothing."""
        return nullcontext() if self.are_in_use else all_preserved()

    @contextmanager
    def apart(self, seed: int | None) -> Iterator[None]:
        """Context of an evaluation: all generators are as before afterwards. Outside of a call it
        begins at `seed`."""
        with preserved_rng() if self.are_in_use else all_preserved():
            if seed is not None and not self.are_in_use:
                seed_generators(seed)
            yield

    def state(self) -> dict[str, Any]:
        """Return the state with which the run goes on."""
        return rng_state() if self.are_in_use or self._kept is None else self._kept

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with a state from `state`, in this call or the next one."""
        if self.are_in_use:
            set_rng_state(state)
        else:
            self._kept, self._program_seed = state, _default.initial_seed()


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
    numpy = state["numpy"]
    keys = numpy["keys"].numpy().astype("uint32")
    numpy_random().set_state(
        (numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    if "cuda" in state and torch.cuda.is_available():
        for device, device_state in zip(
            range(torch.cuda.device_count()), state["cuda"], strict=False
        ):
            torch.cuda.set_rng_state(device_state, device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


@cache
def numpy_random() -> ModuleType:
    """Return `numpy.random`, imported on first use: it takes 20 ms, and torch does not import
    it."""
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


def _python_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


Result = TypeVar("Result")
Argument = TypeVar("Argument")

_PythonState: Any = random.Random.__base__  # written in C, with the state
_MT19937_BYTES = 625 * 4  # the state words of a Mersenne Twister and the position in them
_Memory = c_char * _MT19937_BYTES


class TorchGenerator:
    """torch's generator of the CPU."""

    seed = staticmethod(_default.manual_seed)
    state = staticmethod(_default.get_state)

    def __init__(self) -> None:
        self._memory_at = (c_char * _default.get_state().nbytes).from_address

    def has_moved(self, state: Any) -> bool:
        now = _default.get_state()  # compared as bytes, in a third of the time of `torch.equal`
        return bool(self._memory_at(state.data_ptr()).raw != self._memory_at(now.data_ptr()).raw)

    def restore(self, state: Any) -> None:
        _default.set_state(state)


class PythonGenerator:
    """Python's generator, the hidden object behind the functions of `random`."""

    def __init__(self) -> None:
        self._generator: Any = random.seed.__self__  # type: ignore[attr-defined]
        self._set_words = partial(_PythonState.seed, self._generator)
        self._memory = _python_memory(self._generator)

    def state(self) -> Any:
        return (
            random.getstate()
            if self._memory is None
            else (self._memory.raw, self._generator.gauss_next)
        )

    def has_moved(self, state: Any) -> bool:
        return bool(state != self.state())

    def restore(self, state: Any) -> None:
        if self._memory is not None:  # which is read and never written: it is the interpreter's
            position, *words = unpack("625I", state[0])
            state = (random.Random.VERSION, (*words, position), state[1])
        random.setstate(state)

    def seed(self, seed: int) -> None:
        """Do what `random.seed` does with an integer, without its checks of other types."""
        self._set_words(seed)
        self._generator.gauss_next = None


def _python_memory(generator: random.Random) -> Any:
    """Return the state of python's generator in memory; None where it is not found there."""
    is_known = sys.implementation.name == "cpython" and type(generator) is random.Random
    if not is_known or _PythonState.__basicsize__ < object.__basicsize__ + _MT19937_BYTES:
        return None
    memory = _Memory.from_address(id(generator) + object.__basicsize__)
    position, *words = unpack("625I", memory.raw)
    return memory if (*words, position) == generator.getstate()[1] else None


class NumpyGenerator:
    """numpy's global generator. Its functions take 40 µs to read or set the state."""

    def __init__(self) -> None:
        self._current = numpy_random().get_bit_generator  # user code may replace the generator
        self._seed = numpy_random().seed
        self._generator: Any = None  # whose state is in `_memory`
        self._memory: Any = None
        self._state: Any = None  # as numpy returns it, of the words in `_words`
        self._words = b""

    def state(self) -> Any:
        words = self._read()
        if not words or words != self._words or self._state["has_gauss"]:
            self._state = numpy_random().get_state(legacy=False)
            self._words = words
        return self._state

    def has_moved(self, state: Any) -> bool:
        # the second gaussian of a pair is in other memory
        if self._words and not state["has_gauss"]:
            return self._read() != self._words
        return pickle.dumps(numpy_random().get_state(legacy=False)) != pickle.dumps(state)

    def restore(self, state: Any) -> None:
        if state is not self._state or state["has_gauss"] or not self._words or not self._read():
            numpy_random().set_state(state)
        else:
            self._seed(0)  # drops the second gaussian of a pair
            self._memory.raw = self._words

    def seed(self, seed: int) -> None:
        self._seed(seed & _NUMPY_MASK)

    def _read(self) -> bytes:
        """Return the memory of the state, at the address that numpy publishes; nothing for another
        generator."""
        generator = self._current()
        if generator is not self._generator:
            is_known = type(generator) is numpy_random().MT19937
            self._memory = (
                _Memory.from_address(generator.ctypes.state_address) if is_known else None
            )
            self._generator = generator
        return b"" if self._memory is None else self._memory.raw


# Their states are read twice for every batch, so their memory is read where possible: the functions
# of the libraries convert each of 624 words.
GlobalGenerator: TypeAlias = TorchGenerator | PythonGenerator | NumpyGenerator


@cache
def generators() -> tuple[GlobalGenerator, ...]:
    """Return the global generators that a data set may draw from."""
    return TorchGenerator(), PythonGenerator(), NumpyGenerator()


class RngTracker:
    """Tracks which global generators some code draws from, seeds only these, and restores all of
    them.

    Seeding a generator costs more than fetching a small sample, and most data sets use none or one
    of the three. `seed` is the function that seeds the generators drawn from so far.
    """

    def __init__(self) -> None:
        self._drawn: list[GlobalGenerator] = []
        self.seed: Callable[[int], Any] = _seed_nothing

    def __bool__(self) -> bool:
        """Whether any generator has been drawn from so far."""
        return bool(self._drawn)

    def __reduce__(self) -> Any:
        return RngTracker, ()  # in another process there are other generators

    def run(self, build: Callable[[Argument], Result], argument: Argument) -> Result:
        """Return `build(argument)`, which is called again if it drew from a generator that was not
        seeded."""
        states = [(generator, generator.state()) for generator in generators()]
        try:
            result = build(argument)
            while self._find_drawn(states):
                result = build(argument)
        except BaseException:
            _restore(states)
            raise
        if drawn := self._drawn:
            _restore([(generator, state) for generator, state in states if generator in drawn])
        return result

    def _find_drawn(self, states: list[tuple[GlobalGenerator, Any]]) -> bool:
        drawn = self._drawn
        moved = False
        for generator, state in states:
            if generator not in drawn and generator.has_moved(state):
                drawn = [*drawn, generator]
                moved = True
        if moved:
            self._drawn = drawn
            self.seed = drawn[0].seed if len(drawn) == 1 else self._seed_drawn
        return moved

    def _seed_drawn(self, seed: int) -> None:
        for generator in self._drawn:
            generator.seed(seed)


def _restore(states: list[tuple[GlobalGenerator, Any]]) -> None:
    for generator, state in states:
        generator.restore(state)


def _seed_nothing(seed: int) -> None:
    pass
