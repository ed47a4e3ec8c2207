"""Short names for the classes that ship with torch and with Loopwright."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import Dataset, Sampler

from ..callback import Callback

NOTHING: Mapping[str, str] = MappingProxyType({})
ANYTHING: tuple[type, ...] = (nn.Module, Dataset, Sampler, Optimizer, lr_scheduler.LRScheduler, Callback)
"""What a nested `kind` may be where the argument it is given to says nothing of its type."""


def shipped_names(bases: tuple[type, ...]) -> Mapping[str, str]:
    """Short names with their import paths, for places that need one of these classes."""
    found: dict[str, str] = {}
    for base in bases:
        for needed, names in _TABLE:
            if issubclass(base, needed):
                found |= names()
    return found


@cache
def optimizer_names() -> Mapping[str, str]:
    """`AdamW` for `torch.optim.AdamW`, and so on."""
    return _classes("torch.optim", Optimizer)


@cache
def scheduler_names() -> Mapping[str, str]:
    """`CosineAnnealingLR` for `torch.optim.lr_scheduler.CosineAnnealingLR`, and so on."""
    return _classes("torch.optim.lr_scheduler", lr_scheduler.LRScheduler)


@cache
def module_names() -> Mapping[str, str]:
    """`Linear` for `torch.nn.Linear`, and so on."""
    return _classes("torch.nn", nn.Module)


@cache
def callback_names() -> Mapping[str, str]:
    """The callbacks that ship with Loopwright, under their own names."""
    return _public("loopwright.callbacks")


@cache
def schedule_names() -> Mapping[str, str]:
    """The schedules that ship with Loopwright, under their own names."""
    return _public("loopwright.schedules")


_TABLE: tuple[tuple[type, Callable[[], Mapping[str, str]]], ...] = (
    (Optimizer, optimizer_names),
    (lr_scheduler.LRScheduler, scheduler_names),
    (nn.Module, module_names),
    (Callback, callback_names),
)


def _classes(module: str, base: type) -> Mapping[str, str]:
    found = vars(import_module(module)).items()
    return {
        name: f"{module}.{name}"
        for name, value in sorted(found)
        if not name.startswith("_") and isinstance(value, type) and issubclass(value, base) and value is not base
    }


def _public(module: str) -> Mapping[str, str]:
    """What a package of ours lists in `__all__`, without importing each of its modules; classes only."""
    names: list[str] = import_module(module).__all__
    return {name: f"{module}.{name}" for name in sorted(names) if name[:1].isupper()}
