"""Methods of a trainer's subclass that nothing would call: misspelt, or named as in other
frameworks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from .errors import ConfigurationError, check_arguments

OVERRIDDEN = (
    *(
        "train_step",
        "eval_step",
        "predict_step",
        "prepare_batch",
        "split_batch",
        "forward",
        "compute_loss",
    ),
    *("configure_models", "configure_optimizers", "configure_data"),
)
# methods of other frameworks, which would never be called: the right method and its arguments
STEPS = {
    "training_step": ("train_step", "train_step(self, batch)"),
    "validation_step": ("eval_step", "eval_step(self, batch)"),
    "test_step": ("eval_step", "eval_step(self, batch)"),
    "train_dataloader": (
        "configure_data",
        "configure_data(self), which returns (training data, evaluation data)",
    ),
    "val_dataloader": (
        "configure_data",
        "configure_data(self), which returns (training data, evaluation data)",
    ),
}


def check_subclass(trainer: object, base: type) -> None:
    """Refuse overrides that would never be called or take other arguments, before anything is
    built."""
    _check_steps(trainer, base)
    for name in OVERRIDDEN:
        if getattr(type(trainer), name) is not getattr(base, name):
            expected = [p for p in inspect.signature(getattr(base, name)).parameters if p != "self"]
            advice = f" Write `def {name}({', '.join(['self', *expected])})`."
            check_arguments(
                getattr(trainer, name), expected, f"{type(trainer).__name__}.{name}", advice
            )
    check_method_names(trainer, OVERRIDDEN)


def _check_steps(trainer: object, base: type) -> None:
    """Refuse methods of other frameworks in a subclass, which would never be called."""
    for cls in type(trainer).__mro__:
        if cls is base:
            return
        for name, (ours, how) in STEPS.items():
            is_ours = cls.__module__.startswith("loopwright.")
            if (
                name in vars(cls)
                and not is_ours
                and getattr(type(trainer), ours) is getattr(base, ours)
            ):
                raise ConfigurationError(
                    "method-of-other-framework",
                    f"{cls.__name__}.{name} would never be called. Override this instead: {how}.",
                )


SAME = {
    "training": "train",
    "evaluation": "eval",
    "validation": "eval",
    "val": "eval",
    "optimiser": "optimizer",
}
NEAR = 0.75  # the similarity, from 0 to 1, from which on one word is a misspelling of another


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
    left = [name for name in known or _methods(library) if name not in own] if new else []
    for name in new:
        near = [other for other in left if _is_meant(kind, name, other)]
        near += [
            right for other, right in others.items() if right in left and _is_near(name, other)
        ]
        if near and not any(name in _mentioned(other) for key, other in own.items() if key != name):
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
        other = "load_state_dict(self, state)" if given == ["state_dict"] else "state_dict(self)"
        raise ConfigurationError(
            "half-own-state",
            f"{kind} has `{given[0]}` and no `{other.partition('(')[0]}`, but checkpoints need "
            f"both: add `def {other}`.",
        )
    for name, expected in (("state_dict", []), ("load_state_dict", ["state"])) if given else ():
        check_arguments(getattr(trainer, name), expected, f"{kind}.{name}")


def _methods(library: type) -> list[str]:
    """The methods of a trainer's class that a subclass may override."""
    names = [name for name in dir(library) if not name.startswith(("__", "log_"))]
    return [name for name in names if inspect.isfunction(getattr(library, name, None))]


def _is_meant(kind: type, name: str, other: str) -> bool:
    """Whether a method is another one, misspelt, and not one that calls it."""
    function = getattr(kind, name)
    known = getattr(kind, other)
    mentioned = _mentioned(function)
    if other in mentioned and "super" not in mentioned:
        return False
    if _words(name) == _words(other) and name.startswith("_") == other.startswith("_"):
        return True
    required = [p for p in inspect.signature(known).parameters.values() if p.default is p.empty]
    num_arguments = len([p for p in required if p.kind is p.POSITIONAL_OR_KEYWORD])
    return _is_near(name, other) and _takes(function, num_arguments)


def _is_near(name: str, other: str) -> bool:
    """Whether a name is a misspelling of another one, and not that with further words, which says
    something else."""
    own_words = _words(name)
    words = _words(other)
    if len(own_words) == len(words):
        return all(_similarity(*pair) >= NEAR for pair in zip(own_words, words, strict=True))
    return (
        not set(words) < set(own_words) and _similarity("".join(own_words), "".join(words)) >= 0.85
    )


def _words(name: str) -> list[str]:
    return [SAME.get(word, word) for word in name.lower().strip("_").removeprefix("on_").split("_")]


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _takes(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except TypeError:
        return False
    return True


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
