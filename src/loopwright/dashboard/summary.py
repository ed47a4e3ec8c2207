"""A run in a row of the table: state, progress, best metric, config; also of a run that cannot be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, LoopwrightError
from ..run.changes import flatten
from ..run.reading import COUNTS, RunView

MAX_CONFIG_KEYS = 2_000
MAX_TEXT = 300  # of a value of the config
MAX_LISTED = 20  # entries of a list that is shown as one value

Json = dict[str, Any]


def summarize(run_id: str, run: RunView) -> Json:
    """The summary of a run; what of it cannot be read is said under `damaged`."""
    names = _names(run)
    progress = run.progress
    counts = {name: getattr(progress, name) for name in COUNTS}
    limit = None if progress.limit is None else list(progress.limit)
    summary = {
        **_identity(run_id, run.name, run.state),
        "reason": run.reason,
        "progress": {"fraction": progress.fraction, **counts, "limit": limit},
        "eta": eta_of(run),
        "rate": rate_of(run),
        "best": best_of(run),
        "best_values": {name: _best_or_last(run, name) for name in names["epoch_names"]},
        "started": _seconds(run.started),
        "updated": run.last_write or None,
        "ended": _seconds(run.ended),
        "seconds": run.seconds,
        "device": _text(run.manifest.get("device")),
        "door": _text(run.manifest.get("door")),
        "tags": list(run.tags),
        "config": flat_config(run.settings if run.config is None else run.config),
        **names,
        "modes": {name: run.mode_of(name) for name in names["epoch_names"]},
    }
    damaged = list(dict.fromkeys(run.problems))
    return summary | {"damaged": damaged, "state": "unreadable" if damaged and not run.manifest else run.state}


def damaged_summary(run_id: str, path: Path, problem: str) -> Json:
    """The summary of a run that cannot be read at all."""
    counts = dict.fromkeys(COUNTS)
    return {
        **_identity(run_id, path.name, "unreadable"),
        "progress": {"fraction": None, **counts, "limit": None},
        **dict.fromkeys(("reason", "eta", "rate", "best", "started", "updated", "ended", "seconds", "device", "door")),
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
        steps, epochs = run.metrics.step_names(), list(run.epoch_names)
        last = run.metrics.latest()
    except LoopwrightError as error:
        run.problems.append(str(error))
        steps, epochs, last = [], [], {}
    return {"last": last, "names": sorted({*steps, *epochs}), "step_names": steps, "epoch_names": epochs}


def best_of(run: RunView) -> Json | None:
    """The best value of the run's main metric; the last one where its direction is not known."""
    name = run.main_metric
    best = None if name is None else run.best_of(name)
    if best is not None:
        return {"name": best.name, "value": best.value, "epoch": best.epoch, "mode": best.mode}
    last = None if name is None or run.mode_of(name) else run.last_of(name)
    return None if last is None else {"name": name, "value": last.value, "epoch": last.at, "mode": None}


def _best_or_last(run: RunView, name: str) -> float | None:
    best = run.best_of(name) or run.last_of(name)
    return None if best is None else best.value


def eta_of(run: RunView) -> float | None:
    """Seconds until a running run reaches its limit, at the pace it had so far."""
    fraction, seconds = run.progress.fraction, run.seconds
    if run.state != "running" or not fraction or not seconds:
        return None
    return seconds * (1 - fraction) / fraction


def rate_of(run: RunView) -> float | None:
    """Updates per second of a running run."""
    update, seconds = run.progress.update, run.seconds
    return update / seconds if run.state == "running" and update and seconds else None


def flat_config(config: Mapping[str, Any] | None) -> Json:
    """The values of a config under dotted keys; short lists of plain values are one value."""
    if not config:
        return {}
    try:
        leaves = flatten(_with_lists_as_values(config))
    except ConfigurationError:
        return {}
    return {key: _short(value) for key, value in list(leaves.items())[:MAX_CONFIG_KEYS]}


def _with_lists_as_values(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _with_lists_as_values(entry) for key, entry in value.items()}
    if isinstance(value, list):
        is_flat = len(value) <= MAX_LISTED and not any(isinstance(entry, Mapping | list) for entry in value)
        return tuple(value) if is_flat and value else [_with_lists_as_values(entry) for entry in value]
    return value


def _short(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_short(entry) for entry in value] if isinstance(value, tuple) else value


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
