"""Server-sent events: what has changed since a client last looked.

One task looks at the files of all runs that somebody watches, and only while somebody does. It
compares times and sizes; rows are read when these change, once for all clients that are at the same
place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import LoopwrightError
from ..run.curves import MetricCurve
from ..run.metrics_view import Changes, MetricsCursor
from .answers import Refusal, error_answer, plain, to_json
from .curves import odd_values
from .detail import as_media
from .folder import RunEntry, RunsFolder, Stamp, stamp_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


logger = logging.getLogger("loopwright")

POLL_SECONDS = 0.3
SCAN_SECONDS = 1.5  # for new runs and changed summaries
COMMENT_SECONDS = 15.0  # proxies close connections on which nothing happens
MAX_RUNS = 200
MAX_ROWS = 5_000  # of a metric that are sent at once: more, and the client reads its curves anew


@dataclass(eq=False)
class Listener:
    """A client: what it watches, and what it has not been sent yet."""

    cursors: dict[str, str]  # by run; empty: from now on
    names: tuple[str, ...]
    x: str
    since: float | None  # when it read the table of runs
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    runs: set[str] = field(default_factory=set)  # whose files changed
    summaries: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def take(self) -> tuple[set[str], dict[str, str], set[str]]:
        """What has come up since the last call."""
        taken = (self.runs, self.summaries, self.removed)
        self.runs = set()
        self.summaries = {}
        self.removed = set()
        self.wake.clear()
        return taken


class LiveEvents:
    """All clients, and the task that looks for changes while there are any."""

    def __init__(self, folder: RunsFolder) -> None:
        self.listeners: set[Listener] = set()
        self.is_closed = False
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._stamps: dict[str, Stamp | None] = {}
        self._entries: dict[str, RunEntry] | None = None

    async def stream(self, request: Request) -> Response:
        """Answer with events until the client goes."""
        from starlette.responses import Response, StreamingResponse

        if request.method == "HEAD":  # a stream without a body would never end
            return Response(media_type="text/event-stream")
        try:
            listener = parse_listener(request)
        except Refusal as refusal:
            return error_answer(refusal.status, str(refusal))
        sent = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._events(listener), headers=sent, media_type="text/event-stream"
        )

    def close(self) -> None:
        """Let all clients go; may be called from a signal handler."""
        self.is_closed = True
        for listener in list(self.listeners):
            listener.wake.set()

    async def _events(self, listener: Listener) -> AsyncIterator[str]:
        self._join(listener)
        try:
            yield "retry: 1000\n\n"
            while not self.is_closed:
                try:
                    await asyncio.wait_for(listener.wake.wait(), COMMENT_SECONDS)
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                runs, summaries, removed = listener.take()
                if summaries or removed:
                    shown = [text for run, text in summaries.items() if run not in removed]
                    data = f'{{"runs":[{",".join(shown)}],"removed":{to_json(sorted(removed))}'
                    yield self._event(listener, "runs", f'{data},"time":{time.time():.3f}}}')
                for run in sorted(runs):
                    if found := await asyncio.to_thread(self._new_rows, run, listener):
                        yield self._event(listener, *found)
        except Exception:  # the connection ends, and the client opens another
            logger.warning("A stream of events ended early", exc_info=True)
            raise
        finally:
            self._leave(listener)

    def _event(self, listener: Listener, kind: str, data: str) -> str:
        place = to_json({"time": time.time(), "cursors": listener.cursors})
        return f"event: {kind}\nid: {place}\ndata: {data}\n\n"

    def _new_rows(self, run: str, listener: Listener) -> tuple[str, str] | None:
        """The name and the data of an event for one client, whose cursor is moved; None where there
        is nothing new."""
        try:
            cursor = parse_cursor(listener.cursors[run])
            with self._folder.metrics(self._folder.readable(run)) as metrics:
                if cursor is None:
                    listener.cursors[run] = str(metrics.cursor())
                    return None
                changes = metrics.since(cursor, listener.names, x=listener.x, points=MAX_ROWS)
        except Refusal:
            listener.cursors.pop(run, None)
            return "gone", to_json({"run": run})
        except (LoopwrightError, OSError) as error:
            # it may be removed, or replaced, at this moment
            logger.debug("%s cannot be read: %s", run, error)
            return None
        listener.cursors[run] = str(changes.cursor)
        is_behind = not all(curve.is_exact for curve in changes.steps.values())
        if changes.is_reset or is_behind:
            reason = "rewound" if changes.is_reset else "behind"
            return "reread", to_json({"run": run, "cursor": str(changes.cursor), "reason": reason})
        return _rows_event(run, changes)

    def _join(self, listener: Listener) -> None:
        self.listeners.add(listener)
        # it may have missed something since it read its curves
        listener.runs.update(listener.cursors)
        listener.wake.set()
        if self._entries is not None:
            self._catch_up(listener, self._entries)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    def _leave(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None
            self._entries = None
            self._stamps = {}

    def _catch_up(self, listener: Listener, entries: dict[str, RunEntry]) -> None:
        since = listener.since
        missed = {
            run: entry.text
            for run, entry in entries.items()
            if since is not None and entry.read_at > since
        }
        if missed:
            listener.summaries.update(missed)
            listener.wake.set()

    async def _watch(self) -> None:
        """Look for changes until nobody listens; whatever goes wrong with one look, the next one is
        taken."""
        scanned = 0.0
        while True:
            try:
                await self._compare_files()
                if time.monotonic() - scanned >= SCAN_SECONDS:
                    scanned = time.monotonic()
                    await self._compare_summaries()
            except Exception:
                logger.warning("The runs cannot be read; trying again", exc_info=True)
            await asyncio.sleep(POLL_SECONDS)

    async def _compare_files(self) -> None:
        watched = {run for listener in self.listeners for run in listener.cursors}
        stamps = await asyncio.to_thread(lambda: {run: self._stamp(run) for run in watched})
        # a run that was not looked at before may have changed since the client read it
        changed = {
            run
            for run, stamp in stamps.items()
            if run not in self._stamps or self._stamps[run] != stamp
        }
        self._stamps = stamps
        for listener in self.listeners:
            if own := changed & set(listener.cursors):
                listener.runs |= own
                listener.wake.set()

    def _stamp(self, run: str) -> Stamp | None:
        try:
            return stamp_of(self._folder.path_of(run))
        except Refusal:
            return None

    async def _compare_summaries(self) -> None:
        entries = await asyncio.to_thread(self._folder.scan)
        known = self._entries
        self._entries = entries
        if known is None:
            for listener in self.listeners:
                self._catch_up(listener, entries)
            return
        changed = {
            run: entry.text
            for run, entry in entries.items()
            if run not in known or known[run].text != entry.text
        }
        removed = known.keys() - entries.keys()
        for listener in self.listeners if changed or removed else ():
            listener.summaries |= changed
            listener.removed = (listener.removed - changed.keys()) | removed
            listener.wake.set()


def parse_listener(request: Request) -> Listener:
    """What a client wants to watch, from its query, and where it was, from its last event."""
    query = request.query_params
    runs = query.getlist("run")
    cursors = query.getlist("cursor")
    if len(runs) > MAX_RUNS:
        raise Refusal(400, f"At most {MAX_RUNS} runs can be watched at a time, not {len(runs)}.")
    given = dict(zip(runs, [*cursors, *[""] * len(runs)], strict=False))
    last = _last_event(request)
    given |= {run: cursor for run, cursor in last.get("cursors", {}).items() if run in given}
    for cursor in given.values():
        parse_cursor(cursor)
    since = last.get("time", query.get("since"))
    return Listener(
        given, tuple(dict.fromkeys(query.getlist("name"))), query.get("x") or "step", _time(since)
    )


def _last_event(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(request.headers.get("last-event-id") or "{}")
    except ValueError:
        return {}
    cursors = found.get("cursors") if isinstance(found, dict) else None
    if not isinstance(cursors, dict) or not all(
        isinstance(cursor, str) for cursor in cursors.values()
    ):
        return {}
    return {"time": found.get("time"), "cursors": cursors}


def _time(value: object) -> float | None:
    try:
        return None if value in (None, "") else float(str(value))
    except ValueError:
        raise Refusal(400, f"since={str(value)[:40]!r} is not a time.") from None


def parse_cursor(text: str) -> MetricsCursor | None:
    """A place in a run's metrics; None for the newest."""
    try:
        return MetricsCursor.parse(text) if text else None
    except ValueError:
        raise Refusal(
            400, f"cursor={text[:40]!r} is not from this server: read /api/curves again."
        ) from None


def _rows_event(run: str, changes: Changes) -> tuple[str, str] | None:
    steps = _columns(changes.steps)
    epochs = _columns(changes.epochs)
    events = [asdict(event) for event in changes.events]
    media = [{"name": item.name, "kind": item.kind, **as_media(item)} for item in changes.media]
    log = [asdict(line) for line in changes.log_lines]
    if not (steps or epochs or events or media or log):
        return None
    data = {"run": run, "cursor": str(changes.cursor), "steps": steps, "epochs": epochs}
    return "rows", to_json(plain({**data, "events": events, "media": media, "log": log}))


def _columns(curves: dict[str, MetricCurve]) -> dict[str, Any]:
    return {
        name: {"x": columns["x"], "value": columns["mean"], "odd": odd_values(curve)}
        for name, curve in curves.items()
        if (columns := curve.columns())["x"]
    }
