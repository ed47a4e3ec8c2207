"""Methods of a trainer's subclass that nothing would call: misspelt, or named as in other
frameworks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from .errors import ConfigurationError, check_arguments

OVERRIDDEN = (
    *("train_step", "eval_step", "predict_step", "prepare_batch", "split_batch"),
    *("forward", "compute_loss"),
    *("configure_models", "configure_optimizers", "configure_data"),
)
OTHERS = {  # methods of other frameworks, with those that are called here
    "training_step": "train_step",
    "validation_step": "eval_step",
    "test_step": "eval_step",
    "train_dataloader": "configure_data",
    "val_dataloader": "configure_data",
}
SAME = {"training": "train", "evaluation": "eval", "validation": "eval", "val": "eval"}
NEAR = 0.75  # the similarity, from 0 to 1, from which on one word is a misspelling of another


def check_subclass(trainer: object, base: type) -> None:
    """Refuse overrides that would never be called or take other arguments, before anything is
    built."""
    for name in OVERRIDDEN:
        if getattr(type(trainer), name) is not getattr(base, name):
            expected = [p for p in inspect.signature(getattr(base, name)).parameters if p != "self"]
            label = f"{type(trainer).__name__}.{name}"
            advice = f" Write `def {name}({', '.join(['self', *expected])})`."
            check_arguments(getattr(trainer, name), expected, label, advice)
    check_method_names(trainer, OVERRIDDEN, OTHERS)


def check_method_names(
    trainer: object,
    known: Iterable[str] | None = None,
    others: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse methods of a subclass that nothing calls and that were meant to override another one.

    Args:
        trainer: The trainer; a class of this package is among its bases.
        known: The methods to override. Default: all methods of that class.
        others: Names that other frameworks have for these methods, with the right ones.
    """
    kind = type(trainer)
    at = next(
        index for index, cls in enumerate(kind.__mro__) if cls.__module__.startswith("loopwright.")
    )
    library = kind.__mro__[at]
    own = {
        name: member for cls in reversed(kind.__mro__[:at]) for name, member in vars(cls).items()
    }
    _check_state(trainer, [name for name in ("state_dict", "load_state_dict") if name in own])
    new = [name for name in own if inspect.isfunction(own[name]) and not hasattr(library, name)]
    left = [name for name in known or _methods(library) if name not in own]
    for name in new:
        near = [other for other in left if _is_meant(kind, name, other)]
        near += [
            right for other, right in others.items() if right in left and _is_near(name, other)
        ]
        is_called = any(name in _mentioned(other) for key, other in own.items() if key != name)
        if near and not is_called:
            meant = max(near, key=lambda other: _similarity(name, other))
            raise ConfigurationError(
                "misspelt-method",
                f"{kind.__name__}.{name} would never be called; did you mean {meant}? If it is a "
                "method of your own, give it another name.",
            )


def _check_state(trainer: Any, given: list[str]) -> None:
    """Refuse one of the methods that save and load the state of a subclass without the other."""
    kind = type(trainer).__name__
    if len(given) == 1:
        raise ConfigurationError(
            "half-own-state",
            f"{kind} has `{given[0]}` alone, but checkpoints need both `state_dict(self)` and "
            "`load_state_dict(self, state)`: add the other one.",
        )
    if given:
        check_arguments(trainer.state_dict, (), f"{kind}.state_dict")
        check_arguments(trainer.load_state_dict, ("state",), f"{kind}.load_state_dict")


def _methods(library: type) -> list[str]:
    """The methods of a trainer's class that a subclass may override."""
    names = [name for name in dir(library) if not name.startswith(("__", "log_"))]
    return [name for name in names if inspect.isfunction(getattr(library, name, None))]


def _is_meant(kind: type, name: str, other: str) -> bool:
    """Whether a method is another one, misspelt, and not one that calls it or takes fewer
    arguments."""
    function = getattr(kind, name)
    mentioned = _mentioned(function)
    if other in mentioned and "super" not in mentioned:
        return False
    if _words(name) == _words(other) and name.startswith("_") == other.startswith("_"):
        return True
    required = [
        parameter.name
        for parameter in inspect.signature(getattr(kind, other)).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if not _is_near(name, other):
        return False
    try:
        inspect.signature(function).bind(*required)
    except TypeError:
        return False
    return True


def _is_near(name: str, other: str) -> bool:
    """Whether each word of a name is the other's, perhaps misspelt."""
    pairs = list(zip_longest(_words(name), _words(other), fillvalue=""))
    return all(_similarity(word, known) >= NEAR for word, known in pairs)


def _words(name: str) -> list[str]:
    return [SAME.get(word, word) for word in name.lower().strip("_").removeprefix("on_").split("_")]


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _mentioned(member: Any) -> set[str]:
    """The names and strings in a method or property, and in the functions inside it."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    code = [inspect.unwrap(function).__code__] if inspect.isfunction(function) else []
    found: set[str] = set()
    while code:
        one = code.pop()
        found |= {*one.co_names, *(value for value in one.co_consts if isinstance(value, str))}
        code += [value for value in one.co_consts if inspect.iscode(value)]
    return found
