"""Runs in words and in JSON, as several commands print them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..progress import counted
from ..run.reading import COUNTS, RunProgress, RunView
from ..run.reading_metrics import Mode
from .output import number_text


def age_of(run: RunView) -> float | None:
    """Seconds since the run was started."""
    return None if run.started is None else (datetime.now(UTC) - run.started).total_seconds()


def progress_text(progress: RunProgress) -> str:
    """ "3 of 10 epochs, 30%", or "3 epochs, 15 updates" where nobody knows how far it is to go."""
    if progress.limit is not None and progress.fraction is not None:
        name, limit = progress.limit
        return f"{getattr(progress, name)} of {counted(limit, name)}, {progress.fraction:.0%}"
    counts = ((name, getattr(progress, name)) for name in ("epoch", "update"))
    told = [counted(count, name) for name, count in counts if count is not None]
    return ", ".join(told) or "-"


def best_text(run: RunView, metric: str | None = None, mode: Mode | None = None) -> str:
    """The best value of a metric and where it was; "-" where it was not measured."""
    name = metric or run.main_metric
    best = None if name is None else run.best_of(name, mode)
    return "-" if best is None else f"{best.name} {number_text(best.value)} @{best.epoch}"


def time_text(seconds: float | None) -> str:
    """3723 as "1:02:03"."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def run_as_json(run: RunView, *, metric: str | None = None, mode: Mode | None = None) -> dict[str, Any]:
    """What `runs` and `show` say of a run."""
    progress = run.progress
    name = metric or run.main_metric
    values = {known: run.best_of(known, mode) for known in run.best}
    best = {known: {"value": b.value, "epoch": b.epoch, "mode": b.mode} for known, b in values.items() if b is not None}
    return {
        "path": str(run.path),
        "id": run.id,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "tags": list(run.tags),
        "progress": {
            **{count: getattr(progress, count) for count in COUNTS},
            "limit": None if progress.limit is None else {progress.limit[0]: progress.limit[1]},
            "fraction": progress.fraction,
        },
        "metric": None if name is None or name not in best else {"name": name, **best[name]},
        "best": best,
        "started": None if run.started is None else run.started.isoformat(),
        "ended": None if run.ended is None else run.ended.isoformat(),
        "seconds": run.seconds,
        "age_seconds": age_of(run),
        "problems": list(run.problems),
    }
