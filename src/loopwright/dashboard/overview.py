"""A run in words: how it stands, its best value, and what happened to it on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..run.metrics_records import Event
from ..run.reading import RunView
from .summary import trained_seconds

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
TIMES = {1: "once", 2: "twice"}
STATES = {
    "running": "Running:",
    "finished": "Finished after",
    "stopped": "Stopped after",
    "interrupted": "Interrupted after",
    "failed": "Failed after",
    "crashed": "Crashed after",
}
OCCURRENCES = {
    "started anew": "Restarted from the beginning {times}, because there was no resume point.",
    "resumed": "Resumed {times}.",
    "rewind": "Rewound {times} because of values that were not finite, or a spike.",
    "micro_batches": "Batches were split {times} because memory ran out.",
    "signal": "Received {count} {noun}.",
}
CRASHED = "Its process ended without recording how. The same program or command resumes it"


def sentences(run: RunView, events: Iterable[Event] = ()) -> list[str]:
    """The overview of a run, a few short sentences."""
    if run.state == "unreadable":
        return ["This run cannot be read.", *run.problems]
    counts = Counter(map(_kind, events))
    counts["started anew"] -= 1  # the first time
    found = [_state(run), _reason(run), _best(run), _left(run), *_occurrences(counts), _advice(run)]
    return [sentence for sentence in found if sentence]


def _advice(run: RunView) -> str | None:
    if run.state == "interrupted":
        return "The same program or command resumes it."
    if run.state != "crashed":
        return None
    has_resume_point = any(info.kind == "resume" for info in run.checkpoints())
    where = (
        "from its last resume point"
        if has_resume_point
        else ("from the beginning, because there is no resume point yet")
    )
    return f"{CRASHED} {where}."


def duration_text(seconds: float) -> str:
    """252 as "4 min 12 s": the two largest units, of which the second may be absent."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, length in UNITS:
        count, rest = divmod(rest, length)
        if count and len(parts) < 2:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts)


def _state(run: RunView) -> str:
    """ "Finished after 10 epochs (3,120 updates) in 4 min 12 s on cpu." """
    progress = run.progress
    device = run.manifest.get("device")
    done = _count(progress.epoch, "epoch") or _count(progress.update, "update") or "no update"
    unit, most = progress.limit or (None, 0)
    if run.state != "finished" and unit is not None and (so_far := getattr(progress, unit, None)):
        done = f"{so_far:,} of {_count(most, unit)}"
    words = [STATES[run.state], done]
    words += (
        [f"({updates})"]
        if (updates := _count(progress.update, "update")) and "update" not in done
        else []
    )
    words += [f"in {duration_text(seconds)}"] if (seconds := trained_seconds(run)) else []
    words += [f"on {device}"] if isinstance(device, str) else []
    return f"{' '.join(words)}."


def _reason(run: RunView) -> str | None:
    if not run.reason or run.state not in ("stopped", "failed", "interrupted"):
        return None
    text = run.reason.strip().splitlines()[0][:300].rstrip(".")
    return f"Reason: {text}."


def _best(run: RunView) -> str | None:
    name = run.main_metric
    best = None if name is None else run.best_of(name)
    return None if best is None else f"Best {best.name} {best.value:.4g} in epoch {best.epoch}."


def _left(run: RunView) -> str | None:
    left = run.eta
    return None if left is None else f"About {duration_text(left)} left."


def _occurrences(counts: Counter[str]) -> Iterator[str]:
    for kind, text in OCCURRENCES.items():
        if (count := counts[kind]) > 0:
            yield text.format(
                times=TIMES.get(count, f"{count} times"),
                count=count,
                noun="signal" if count == 1 else "signals",
            )


def _kind(event: Event) -> str:
    """The kind of an event; a start before the first update is another thing than a further call of
    `train`."""
    return "started anew" if event.kind == "started" and not event.update else event.kind


def _count(count: int | None, noun: str) -> str | None:
    if not count:
        return None
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
