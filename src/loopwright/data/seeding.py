"""Random generators: seeding them per sample, and saving and restoring them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

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
