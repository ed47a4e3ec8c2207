"""When a resume point is due and which models are worth keeping; values only, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loopwright.errors import ConfigurationError


def direction_of(metric: str) -> Literal["min", "max"]:
    """Whether smaller or larger values are better, as far as a name says; the rule of all callbacks with "auto"."""
    return "min" if metric.endswith(("loss", "error")) else "max"


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """Save a resume point every so many updates, epochs or minutes, whichever comes; keep the last few."""

    every_updates: int | None = None
    every_epochs: int | None = None
    every_minutes: float | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("every_updates", "every_epochs", "every_minutes"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ConfigurationError(f"ResumePolicy({name}={value!r}): give a number above 0, or None.")
        _check_keep("ResumePolicy", self.keep)

    def is_due(self, *, update: int, epoch_end: int | None = None, minutes_since_last: float = 0.0) -> bool:
        """Whether to save now; `epoch_end` is the number of epochs completed, where one has just ended.

        The end of an epoch is asked about apart from its last update, so updates do not count there.
        """
        if self.every_minutes is not None and minutes_since_last >= self.every_minutes:
            return True
        if epoch_end is not None:
            return self.every_epochs is not None and epoch_end > 0 and epoch_end % self.every_epochs == 0
        return self.every_updates is not None and update > 0 and update % self.every_updates == 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may be kept: its name, its metric, and the update it was taken at."""

    name: str
    value: float
    update: int


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep the best few models by a metric.

    Infinities rank where they belong; NaN ranks below everything; of equals the earlier is the better.
    """

    metric: str
    mode: Literal["min", "max"] = "min"
    keep: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigurationError(f"KeepPolicy(mode={self.mode!r}): say 'min' or 'max'.")
        _check_keep("KeepPolicy", self.keep)

    def better(self, first: float, second: float) -> bool:
        """Whether the first metric is truly better than the second."""
        return self._badness(first) < self._badness(second)

    def ranked(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates, best first."""
        return sorted(candidates, key=lambda c: (self._badness(c.value), c.update, c.name))

    def is_worth_keeping(self, candidate: Candidate, kept: Iterable[Candidate]) -> bool:
        """Whether it would be among the best few, together with those kept so far."""
        others = [other for other in kept if other.name != candidate.name]
        return candidate in self.ranked([*others, candidate])[: self.keep]

    def _badness(self, value: float) -> tuple[bool, float]:
        if math.isnan(value):
            return (True, 0.0)
        return (False, value if self.mode == "min" else -value)


def _check_keep(policy: str, keep: int) -> None:
    if keep < 1:
        raise ConfigurationError(f"{policy}(keep={keep}): keep at least 1.")
