"""Mistakes in a config: each with its file, line and key, all of them in one report."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is, and what was found, was expected and can be done about it."""

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        head = f"{place}: {self.key}" if self.key else place
        return head + "\n    " + self.message.replace("\n", "\n    ")


class ConfigError(ConfigurationError):
    """A config cannot be used; `problems` has every mistake that was found, and `str()` is the whole report."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(dict.fromkeys(problems))
        count = "1 mistake" if len(self.problems) == 1 else f"{len(self.problems)} mistakes"
        super().__init__("\n".join([f"{count} in the configuration:", *map(str, self.problems)]))


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """A hint that ends a message about an unknown name: the nearest ones that exist, or else all of them."""
    names = sorted(set(known))
    close = near_names(name, names, cutoff=cutoff)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return "there are none here."
    shown = names[:20]
    return f"there is: {', '.join(shown)}{', ...' if len(names) > len(shown) else ''}."


def near_names(name: str, known: Sequence[str], *, cutoff: float = 0.5) -> list[str]:
    """Up to three of the known names that look most like this one, whatever their case."""
    lowered = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=cutoff)
    ratios = {other: difflib.SequenceMatcher(None, name.lower(), other).ratio() for other in found}
    return [lowered[other] for other in found if ratios[other] > max(ratios.values()) - 0.1]
