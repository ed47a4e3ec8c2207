"""A run in the table of runs, and in words: how it stands, its best value, and what happened to it
on the way; also of a run that cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from ..run.metrics_view import Event
from ..run.reading import COUNTS, Run
from ..text import counted, duration

Json = dict[str, Any]
MAX_SETTINGS = 2_000
TIMES = {1: "once", 2: "twice"}
OCCURRENCES = {
    "started anew": "Restarted from the beginning {times}, because there was no resume point.",
    "resumed": "Resumed {times}.",
    "rewind": "Rewound {times} because of values that were not finite, or a spike.",
    "micro_batches": "Batches were split {times} because memory ran out.",
    "signal": "Received {signals}.",
}
CRASHED = "Its process ended without recording how. The same program or command resumes it"


def summarize(run_id: str, run: Run) -> Json:
    """The row of a run: `Run.as_json`, its settings, and its newest values."""
    seconds = run.seconds
    rate = None
    if run.state == "running" and seconds:
        rate = (run.progress.update or 0) / seconds
    row = {
        **run.as_json(),
        "id": run_id,
        "started": _seconds(run.started),
        "updated": run.last_write or None,
        "ended": _seconds(run.ended),
        "rate": rate,
        "config": {key: _shown(value) for key, value in list(run.settings.items())[:MAX_SETTINGS]},
        "last": run.last,
        "names": sorted({*run.step_names, *run.epoch_names}),
        "step_names": run.step_names,
        "epoch_names": run.epoch_names,
        "best_values": {name: _value(run, name) for name in run.epoch_names},
    }
    del row["age_seconds"]  # which is never the same twice
    del row["path"]  # a report does without folders of this machine
    return row | {"problems": list(run.problems)}  # reading the row may have found some


def damaged_summary(run_id: str, path: Path, problem: str) -> Json:
    """The row of a run that cannot be read at all."""
    unknown = ("reason", "metric", "started", "updated", "ended", "seconds", "seconds_left", "rate")
    return {
        "id": run_id,
        "name": path.name,
        "state": "unreadable",
        "progress": dict.fromkeys((*COUNTS, "limit", "fraction")),
        **dict.fromkeys((*unknown, "device", "interface")),
        **{part: [] for part in ("tags", "names", "step_names", "epoch_names")},
        **{part: {} for part in ("best", "config", "last", "best_values")},
        "problems": [problem],
    }


def _value(run: Run, name: str) -> float | None:
    found = run.headline(name)
    return None if found is None else found.value


def _shown(value: object) -> object:
    """A setting as JSON can hold it."""
    is_odd = isinstance(value, float) and not isfinite(value)
    return str(value) if is_odd else value


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


# In words


def sentences(run: Run, events: Iterable[Event] = ()) -> list[str]:
    """The overview of a run, a few short sentences."""
    if run.state == "unreadable":
        return ["This run cannot be read.", *run.problems]
    counts = Counter(map(_kind, events))
    counts["started anew"] -= 1  # the first time
    found = [_state(run), _reason(run), _best(run), _left(run), *_occurrences(counts), _advice(run)]
    return [sentence for sentence in found if sentence]


def _state(run: Run) -> str:
    """ "Finished after 10 epochs (3,120 updates) in 4 min 12 s on cpu." """
    progress = run.progress
    updates = _count(progress.update, "update")
    done = _count(progress.epoch, "epoch") or updates or "no update"
    unit, most = progress.limit or (None, 0)
    if run.state != "finished" and unit is not None and (so_far := getattr(progress, unit, None)):
        done = f"{so_far:,} of {_count(most, unit)}"
    words = ["Running:" if run.state == "running" else f"{run.state.capitalize()} after", done]
    if updates and "update" not in done:
        words.append(f"({updates})")
    if seconds := run.seconds:
        words.append(f"in {duration(seconds)}")
    if run.device:
        words.append(f"on {run.device}")
    return f"{' '.join(words)}."


def _reason(run: Run) -> str | None:
    if not run.reason or run.state not in ("stopped", "failed", "interrupted"):
        return None
    text = run.reason.strip().splitlines()[0][:300].rstrip(".")
    return f"Reason: {text}."


def _best(run: Run) -> str | None:
    best = run.headline()
    if best is None or best.mode is None:
        return None
    return f"Best {best.name} {best.value:.4g} in epoch {best.epoch}."


def _left(run: Run) -> str | None:
    left = run.eta
    return None if left is None else f"About {duration(left)} left."


def _occurrences(counts: Counter[str]) -> Iterator[str]:
    for kind, text in OCCURRENCES.items():
        if (count := counts[kind]) > 0:
            times = TIMES.get(count, f"{count} times")
            yield text.format(times=times, signals=counted(count, "signal"))


def _advice(run: Run) -> str | None:
    if run.state == "interrupted":
        return "The same program or command resumes it."
    if run.state != "crashed":
        return None
    if any(info.kind == "resume" for info in run.checkpoints()):
        return f"{CRASHED} from its last resume point."
    return f"{CRASHED} from the beginning, because there is no resume point yet."


def _kind(event: Event) -> str:
    """The kind of an event; a start before the first update is another thing than a further call of
    `train`."""
    return "started anew" if event.kind == "started" and not event.update else event.kind


def _count(count: int | None, noun: str) -> str | None:
    if not count:
        return None
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
