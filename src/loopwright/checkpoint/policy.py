"""When a resume point is due and which models are worth keeping; values only, no files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from ..errors import ConfigurationError
from ..metrics.best import Mode, is_better, ranked


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """When to save resume points: every n updates, epochs or minutes, whichever comes first.

    Args:
        every_updates: Save after every n updates; None for never.
        every_epochs: Save after every n epochs; None for never.
        every_minutes: Save when this many minutes have passed since the last one; None for never.
        keep: The number of newest resume points to keep.
        min_seconds_updates: The least time since the last resume point, for `every_updates`.
        min_seconds_epochs: The least time since the last resume point, for `every_epochs`.

    >>> from loopwright.checkpoint import ResumePolicy
    >>> ResumePolicy(every_updates=100).is_due(update=200)
    True
    """

    every_updates: int | None = None
    every_epochs: int | None = None
    every_minutes: float | None = None
    keep: int = 2
    min_seconds_updates: float = 0.0
    min_seconds_epochs: float = 0.0

    def __post_init__(self) -> None:
        for name in ("every_updates", "every_epochs", "every_minutes"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ConfigurationError(
                    f"Checkpoints({name}={value!r}): use a number above 0, or None."
                )
        for seconds in (self.min_seconds_updates, self.min_seconds_epochs):
            if not (_is_number(seconds) and seconds >= 0):
                raise ConfigurationError(
                    f"Checkpoints(min_seconds={seconds!r}): use a number of seconds, 0 or more."
                )
        _check_keep("Checkpoints", self.keep)

    def is_due(
        self, *, update: int, epoch_end: int | None = None, minutes_since_last: float = 0.0
    ) -> bool:
        """Whether to save now; `epoch_end` is the number of epochs completed, where one has just
        ended.

        The end of an epoch is asked about apart from its last update, so updates do not count
        there.
        """
        if self.is_late(minutes_since_last):
            return True
        if epoch_end is not None:
            return (
                self.every_epochs is not None
                and epoch_end > 0
                and epoch_end % self.every_epochs == 0
            )
        return self.every_updates is not None and update > 0 and update % self.every_updates == 0

    def is_late(self, minutes_since_last: float) -> bool:
        """Whether so much time has passed that it is time in any case."""
        return self.every_minutes is not None and minutes_since_last >= self.every_minutes


class Candidate(NamedTuple):
    """A model that may be kept: its name, its metric, and the update it was taken at."""

    name: str
    value: float
    update: int


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep the best few models by a metric.

    Infinities rank as numbers; NaN ranks below everything; of equal values the earlier one is
    better.

    Args:
        metric: The name of the metric.
        mode: Whether smaller ("min") or larger ("max") values are better.
        keep: The number of models to keep.

    >>> from loopwright.checkpoint import Candidate, KeepPolicy
    >>> kept = [Candidate("a", 0.3, update=100)]
    >>> KeepPolicy("eval_loss").is_worth_keeping(Candidate("b", 0.2, update=200), kept)
    True
    """

    metric: str
    mode: Mode = "min"
    keep: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ConfigurationError(
                "unknown-mode", f"KeepPolicy(mode={self.mode!r}): use 'min' or 'max'."
            )
        _check_keep("BestModel", self.keep)

    def better(self, first: float, second: float) -> bool:
        """Whether the first value is better than the second; equal ones are not."""
        return is_better(first, second, self.mode)

    def ranked(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates, best first."""
        by_age = sorted(candidates, key=lambda candidate: (candidate.update, candidate.name))
        return ranked(by_age, lambda candidate: candidate.value, self.mode)

    def is_worth_keeping(self, candidate: Candidate, kept: Iterable[Candidate]) -> bool:
        """Whether it would be among the best few, together with those kept so far."""
        others = [other for other in kept if other.name != candidate.name]
        return candidate in self.ranked([*others, candidate])[: self.keep]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_keep(policy: str, keep: int) -> None:
    if keep < 1:
        raise ConfigurationError(f"{policy}(keep={keep}): keep at least 1.")
