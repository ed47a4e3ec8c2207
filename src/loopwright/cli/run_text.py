"""Runs in words and in JSON, as several commands print them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..metrics.direction import Mode
from ..run.metrics_store import Point
from ..run.reading import COUNTS, RunProgress, RunView
from ..training.progress import counted
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
    """The best value of a metric and where it was; the last, where it is not known what is better; "-" without any."""
    name = metric or run.main_metric
    best = None if name is None else run.best_of(name, mode)
    if best is not None:
        return f"{best.name} {number_text(best.value)} @{best.epoch}"
    last = None if name is None or run.mode_of(name) else run.last_of(name)
    return "-" if last is None else f"{name} {number_text(last.value)} @{last.at} (last)"


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
    values = {known: run.best_of(known, mode if known == name else None) for known in run.epoch_names}
    best = {known: {"value": b.value, "epoch": b.epoch, "mode": b.mode} for known, b in values.items() if b is not None}
    last = run.last_of(name) if name is not None and name not in best and run.mode_of(name) is None else None
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
        "metric": _metric_as_json(name, best.get(name or ""), last),
        "best": best,
        "started": None if run.started is None else run.started.isoformat(),
        "ended": None if run.ended is None else run.ended.isoformat(),
        "seconds": run.seconds,
        "age_seconds": age_of(run),
        "problems": list(run.problems),
    }


def _metric_as_json(name: str | None, best: Mapping[str, Any] | None, last: Point | None) -> dict[str, Any] | None:
    """The metric that stands for the run; without a mode it is the last value, since which is best is not known."""
    if best is not None:
        return {"name": name, **best}
    return None if last is None else {"name": name, "value": last.value, "epoch": last.at, "mode": None}
