"""A run in a row of the table: state, progress, best metric, config; also of a run that cannot be
read."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import LoopwrightError
from ..run.reading import RunView
from ..run.run_progress import COUNTS

MAX_SETTINGS = 2_000
MAX_TEXT = 300  # of a value of the settings

Json = dict[str, Any]


def summarize(run_id: str, run: RunView) -> Json:
    """The summary of a run; what of it cannot be read is said under `damaged`."""
    names = _names(run)
    progress = run.progress
    is_going = run.state == "running"
    seconds = trained_seconds(run)
    counts = {name: getattr(progress, name) for name in COUNTS}
    limit = None if progress.limit is None else list(progress.limit)
    summary = {
        **_identity(run_id, run.name, run.state),
        "reason": run.reason,
        "progress": {"fraction": progress.fraction, **counts, "limit": limit},
        "eta": run.eta,
        "rate": None if not is_going or not seconds else (progress.update or 0) / seconds,
        "best": best_of(run),
        "best_values": {name: _best_or_last(run, name) for name in names["epoch_names"]},
        "started": _seconds(run.started),
        "updated": run.last_write or None,
        "ended": _seconds(run.ended),
        "seconds": seconds,
        "device": _text(run.manifest.get("device")),
        "interface": _text(run.manifest.get("door")),
        "tags": list(run.tags),
        "config": _settings(run),
        **names,
        "modes": {name: run.mode_of(name) for name in names["epoch_names"]},
    }
    damaged = list(dict.fromkeys(run.problems))
    return summary | {
        "damaged": damaged,
        "state": "unreadable" if damaged and not run.manifest else run.state,
    }


def damaged_summary(run_id: str, path: Path, problem: str) -> Json:
    """The summary of a run that cannot be read at all."""
    counts = dict.fromkeys(COUNTS)
    return {
        **_identity(run_id, path.name, "unreadable"),
        "progress": {"fraction": None, **counts, "limit": None},
        **dict.fromkeys(
            (
                "reason",
                "eta",
                "rate",
                "best",
                "started",
                "updated",
                "ended",
                "seconds",
                "device",
                "interface",
            )
        ),
        "tags": [],
        "config": {},
        "modes": {},
        "best_values": {},
        "damaged": [problem],
        "last": {},
        "names": [],
        "step_names": [],
        "epoch_names": [],
    }


def _identity(run_id: str, name: str, state: str) -> Json:
    return {"id": run_id, "name": name, "state": state}


def _names(run: RunView) -> Json:
    """The names of metrics and their newest values."""
    try:
        steps = run.metrics.step_names()
        epochs = list(run.epoch_names)
        last = run.metrics.latest()
    except LoopwrightError as error:
        run.problems.append(str(error))
        steps = []
        epochs = []
        last = {}
    return {
        "last": last,
        "names": sorted({*steps, *epochs}),
        "step_names": steps,
        "epoch_names": epochs,
    }


def trained_seconds(run: RunView) -> float | None:
    """How long a run has trained: the time since its start would count the time between a crash and
    a resume."""
    if run.state not in ("running", "crashed"):
        return run.seconds
    place = run.metrics.last_place() if run.epoch_names or not run.problems else None
    if place is not None and place["seconds"] is not None:
        return float(place["seconds"])
    return run.seconds if run.state == "running" else None


def best_of(run: RunView) -> Json | None:
    """The best value of the run's main metric; the last one where its direction is not known."""
    name = run.main_metric
    best = None if name is None else run.best_of(name)
    if best is not None:
        return {"name": best.name, "value": best.value, "epoch": best.epoch, "mode": best.mode}
    last = None if name is None or run.mode_of(name) else run.last_of(name)
    return (
        None
        if last is None
        else {"name": name, "value": last.value, "epoch": last.at, "mode": None}
    )


def _best_or_last(run: RunView, name: str) -> float | None:
    best = run.best_of(name) or run.last_of(name)
    return None if best is None else best.value


def _settings(run: RunView) -> Json:
    """The settings of a run, each as a short value."""
    return {key: _short(value) for key, value in list(run.settings.items())[:MAX_SETTINGS]}


def _short(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
