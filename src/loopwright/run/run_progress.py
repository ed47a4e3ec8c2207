"""How far a run got, what ends it, and how long that will take. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reading import RunView

COUNTS = ("epoch", "step", "update", "sample")
# of a configured trainer
LIMITS = {
    "max_epochs": "epoch",
    "max_updates": "update",
    "max_samples": "sample",
}


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run got, and the limit that ends it; None where it is not known."""

    epoch: int | None = None
    step: int | None = None
    update: int | None = None
    sample: int | None = None
    seconds: float | None = None
    limit: tuple[str, int] | None = None  # ("epoch", 10)
    # totals that the limit amounts to, and `first_epoch`
    planned: Mapping[str, int] = field(default_factory=dict)

    @property
    def fraction(self) -> float | None:
        """The completed fraction of the run, from 0 to 1; of epochs, with the part of the epoch
        under way."""
        if self.limit is None:
            return None
        unit, last = self.limit
        done = _part(getattr(self, unit), last)
        updates = _part(self.update, self.planned.get("update"))
        if unit != "epoch" or updates is None:
            return done
        first = self.planned.get("first_epoch", 0)
        least = 0.0 if self.epoch is None else _part(self.epoch - first, last - first)
        most = 1.0 if self.epoch is None else _part(self.epoch + 1 - first, last - first)
        return min(max(updates, least or 0.0), most or 1.0)


def _part(done: float | None, total: float | None) -> float | None:
    if done is None or total is None:
        return None
    return min(done / total, 1.0) if total > 0 else 1.0


def limit_of(
    manifest: Mapping[str, Any], config: Mapping[str, Any] | None
) -> tuple[tuple[str, int] | None, dict[str, int]]:
    """The limit that ends a run, as (unit, number), and the totals that it amounts to, as the run
    noted them.

    A run of an earlier version noted nothing: its config says the limit.
    """
    noted = manifest.get("planned")
    planned = noted if isinstance(noted, dict) else {}
    totals = {
        name: planned[name] for name in (*COUNTS, "first_epoch") if type(planned.get(name)) is int
    }
    limit = planned.get("limit")
    is_noted = isinstance(limit, list) and len(limit) == 2 and limit[0] in (*COUNTS, "seconds")
    if isinstance(limit, list) and is_noted and type(limit[1]) in (int, float):
        return (limit[0], limit[1]), totals
    trainer = (config or {}).get("trainer")
    limits = trainer if isinstance(trainer, dict) else {}
    found = ((count, limits.get(name)) for name, count in LIMITS.items())
    return next(((count, value) for count, value in found if type(value) is int), None), totals


def seconds_left(run: RunView) -> float | None:
    """The time until the end of a run that is going on, evaluations included, at the rate of this
    start of it."""
    fraction = run.progress.fraction
    if run.state != "running" or fraction is None or fraction <= 0:
        return None
    began, before = _start(run)
    done = fraction - before
    if began is None or done <= 0:
        return None
    return max((datetime.now(UTC).timestamp() - began) / done * (1.0 - fraction), 0.0)


def _start(run: RunView) -> tuple[float | None, float]:
    """When the present process began to train, and the fraction of the run that was done then."""
    starts = [event for event in run.metrics.events() if event.kind in ("started", "resumed")]
    if not starts:
        return (None if run.started is None else run.started.timestamp()), 0.0
    last = starts[-1]
    total = run.progress.planned.get("update")
    return last.wall, (last.update or 0) / total if total else 0.0
