"""One run whole: overview, manifest, machine, checkpoints, events, media, log and traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..checkpoint.inspect import list_checkpoints
from ..checkpoint.layout import read_limited
from ..errors import LoopwrightError
from ..run.best import choose
from ..run.changes import flatten
from ..run.directory import CONFIG, LOG
from ..run.files import PROFILE
from ..run.metrics_view import Event, MediaItem, MetricsView
from ..run.reading import Run
from ..run.schema import AXES
from .answers import Refusal
from .folder import RunEntry, own_file
from .summary import sentences

Json = dict[str, Any]
LOG_LINES = 400
EMPTY_LOG: Json = {"lines": [], "is_cut": False}
LARGEST_TEXT = 4_000_000  # bytes of a file that is passed through
# entries of the manifest that have a place of their own
APART = ("packages", "hardware", "fingerprint", "data", "config", "arguments")


def describe(entry: RunEntry, run: Run, metrics: MetricsView) -> Json:
    """All that the page of a run shows; a part that cannot be read is empty, and `problems` says
    why."""
    problems: list[str] = []

    def part(read: Callable[[], Any], nothing: Any) -> Any:
        try:
            return read()
        except (LoopwrightError, OSError, ValueError) as error:
            problems.append(str(error))
            return nothing

    manifest = run.manifest
    config = own_text(run.path, CONFIG)
    # first: what comes meanwhile then comes twice
    cursor = part(lambda: str(metrics.cursor()), "")
    events: list[Event] = part(metrics.events, [])
    answer = {
        "summary": entry.summary,
        "cursor": cursor,
        "sentences": part(lambda: sentences(run, events), []),
        "path": str(run.path),
        "command": run.command,
        "manifest": {key: value for key, value in manifest.items() if key not in APART},
        "config": run.config or None,
        "settings": run.settings,
        "config_text": None if config is None else config.read_text(errors="replace"),
        "environment": environment(manifest),
        "data": manifest.get("data"),
        "changes": run.changes,
        "checkpoints": part(lambda: checkpoints(run), []),
        "events": [asdict(event) for event in events],
        "media": part(lambda: media_index(metrics.media()), []),
        "profile": run.profile if own_text(run.path, PROFILE) else None,
        "log": part(lambda: read_log(run.path, metrics, LOG_LINES), EMPTY_LOG),
        "traceback": traceback_of(events) if run.state in ("failed", "crashed") else None,
    }
    found = [*entry.summary["problems"], *run.problems, *problems]
    return answer | {"problems": list(dict.fromkeys(found))}


def as_media(item: MediaItem) -> Json:
    """A picture, histogram, text or table without its content."""
    place = {axis: getattr(item, axis) for axis in AXES}
    return {"id": item.id, **place, "position": item.position, "caption": item.caption}


def media_index(items: Iterable[MediaItem]) -> list[Json]:
    """All media by name, each with its items in order."""
    groups: dict[tuple[str, str], Json] = {}
    for item in items:
        nothing = {"name": item.name, "kind": item.kind, "items": []}
        group = groups.setdefault((item.name, item.kind), nothing)
        group["items"].append(as_media(item))
    return list(groups.values())


def contents(metrics: MetricsView, name: str, points: int) -> Json:
    """The contents of all histograms, texts or tables of a name, evenly thinned to a number of
    them."""
    items = [item for item in metrics.media(name) if item.kind != "image"]
    if not items:
        raise Refusal(404, f"The run has logged no histogram, text or table {name!r}.")
    every = -(-len(items) // points)
    chosen = items[::-1][::every][::-1]  # the newest is always among them
    return {
        "name": name,
        "kind": items[0].kind,
        "every": every,
        "total": len(items),
        "items": [{**as_media(item), "content": item.content} for item in chosen],
    }


def media_file(run: Path, item: MediaItem) -> bytes:
    """The picture of an item; only files inside the run are read."""
    path = None if item.file is None else own_file(run, item.file)
    if path is None:
        raise Refusal(404, f"The picture of {item.name!r} at step {item.step} no longer exists.")
    return read_limited(path)


def checkpoints(run: Run, *, verify: bool = False) -> list[Json]:
    """The resume points and kept models of a run; sizes are compared, and hashes too if
    `verify`."""
    home = run.path.resolve()
    best = None
    with suppress(LoopwrightError):  # the direction of its metric may be unknown
        best = choose(run)
    found = []
    for info in list_checkpoints(run.path, verify=verify):
        if not info.path.resolve().is_relative_to(home):
            continue
        name, value = info.metric or (None, None)
        entry: Json = {
            "kind": info.kind,
            "name": info.name,
            "size": info.size,
            "is_sound": info.is_sound,
            "is_verified": info.is_verified,
            "update": info.meta.get("update"),
            "epoch": info.meta.get("epoch"),
            "metric": name and {"name": name, "value": value, "mode": info.mode},
            "is_best": best is not None and best.path == info.path,
            "created": None if info.created is None else info.created.timestamp(),
            "problems": list(info.problems),
        }
        found.append(entry)
    return found


def environment(manifest: Mapping[str, Any]) -> list[Json]:
    """What the run ran on and with, in groups of names and values."""
    hardware = manifest.get("hardware", {})
    groups: dict[str, Json] = {
        "Machine": {**_chosen(manifest, "device", "platform"), **hardware},
        "Versions": _chosen(manifest, "loopwright", "torch", "python"),
        "Code": _chosen(manifest, "git_commit", "git_dirty", "seed"),
        "Packages": manifest.get("packages", {}),
    }
    return [
        {"title": title, "entries": list(flatten(entries).items())}
        for title, entries in groups.items()
        if entries
    ]


def _chosen(manifest: Mapping[str, Any], *names: str) -> Json:
    return {name: manifest[name] for name in names if name in manifest}


def read_log(run: Path, metrics: MetricsView, last: int) -> Json:
    """The last lines of the run's log: those of its metrics file, or of `log.txt` where that has
    none."""
    lines = [asdict(line) for line in metrics.log_lines(last + 1)]
    path = own_text(run, LOG)
    if not lines and path is not None:
        place = {"id": None, "wall": None, "level": None}
        texts = path.read_text(errors="replace").splitlines()
        lines = [{**place, "text": text} for text in texts]
    return {"lines": lines[-last:], "is_cut": len(lines) > last}


def traceback_of(events: Iterable[Event]) -> str | None:
    """The traceback of a run that failed, as its last event has it."""
    kinds = ("failed", "finished", "started", "resumed")
    last = next((event for event in reversed(list(events)) if event.kind in kinds), None)
    noted = last.detail.get("traceback") if last is not None and last.kind == "failed" else None
    return noted if isinstance(noted, str) else None


def own_text(run: Path, name: str) -> Path | None:
    """A text file of the run; None where there is none, or where it is too large to show."""
    path = own_file(run, name)
    return None if path is None or path.stat().st_size > LARGEST_TEXT else path
