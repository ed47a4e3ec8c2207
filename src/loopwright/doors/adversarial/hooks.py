"""The three hooks of an epoch, and whether they can be called as they will be."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigurationError

HOOKS = ("on_epoch_start", "train_step", "on_epoch_end")
ARGUMENTS = ("x", "y", "idx")  # of train_step


@dataclass(frozen=True, slots=True)
class EpochHooks:
    """What happens in one epoch: the three functions, and the keywords for each of them."""

    start: Callable[..., Any]
    step: Callable[..., Any]
    end: Callable[..., Any]
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def checked_keywords(given: Any) -> Mapping[str, Mapping[str, Any]]:
    example = "callback_kwargs={'on_epoch_start': {'print_train_start': True}}"
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"callback_kwargs is {given!r}; expected a dict of keywords for each hook, as in {example}."
        )
    for name, keywords in given.items():
        if name not in HOOKS or not isinstance(keywords, Mapping):
            near = difflib.get_close_matches(str(name), HOOKS, n=1, cutoff=0.7)
            hint = f" Did you mean {near[0]!r}?" if near and name not in HOOKS else ""
            raise ConfigurationError(
                f"callback_kwargs has {name!r}: {keywords!r}; expected a dict of keywords under {', '.join(HOOKS)}, as "
                f"in {example}.{hint}"
            )
    return given


def check_epoch(epoch: Any) -> None:
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ConfigurationError(
            f"train_paired was given epoch={epoch!r}; expected a whole number from 0, as in `for epoch in range(10): "
            "trainer.train_paired(epoch)`."
        )


def check_hooks(hooks: EpochHooks) -> None:
    """Refuse hooks that cannot be called as they will be, before the first of them is."""
    for name, hook in zip(HOOKS, (hooks.start, hooks.step, hooks.end), strict=True):
        if not callable(hook):
            raise ConfigurationError(
                f"train_paired was given {name}={hook!r}; expected a function, or nothing for the method. If it was "
                "called by mistake, leave out the brackets."
            )
        keywords = hooks.keywords.get(name, {})
        try:
            signature = inspect.signature(hook)
        except (TypeError, ValueError):  # of something built in
            continue
        try:
            signature.bind(*(ARGUMENTS if name == "train_step" else ()), **keywords)
        except TypeError as error:
            called = ", ".join([*(ARGUMENTS if name == "train_step" else ()), *(f"{key}=..." for key in keywords)])
            shown = ", ".join(["self", *ARGUMENTS] if name == "train_step" else ["self"])
            given = ", ".join(signature.parameters)
            raise ConfigurationError(
                f"{name}({given}) cannot be called as {name}({called}): {error}. Write `def {name}({shown}, **kwargs)`."
            ) from None
