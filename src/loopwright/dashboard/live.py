"""Server-sent events: what has changed since a client last looked.

Each stream compares times and sizes of the files of the runs that its client watches, and reads rows
when these change. The summaries of all runs are read once for all streams.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
from .folder import RunEntry, RunsFolder, Stamp, open_metrics, stamp_of

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
    """A client: what it watches, and what it has been sent."""

    cursors: dict[str, str]  # by run; empty: from now on
    names: tuple[str, ...]
    x: str
    stamps: dict[str, Stamp | None] = field(default_factory=dict)  # of the files of runs
    summaries: dict[str, str] | None = None


class LiveEvents:
    """The streams of all clients."""

    def __init__(self, folder: RunsFolder) -> None:
        self.listeners: set[Listener] = set()
        self._is_closed = False
        self._folder = folder
        self._scan_lock = asyncio.Lock()
        self._scanned_at = -math.inf
        self._entries: dict[str, RunEntry] = {}

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
        self._is_closed = True

    async def _events(self, listener: Listener) -> AsyncIterator[str]:
        self.listeners.add(listener)
        sent_at = time.monotonic()
        try:
            yield "retry: 1000\n\n"
            while not self._is_closed:
                events = _new_summaries(listener, await self._scan())
                events += await asyncio.to_thread(self._new_rows, listener)
                for kind, data in events:
                    yield f"event: {kind}\ndata: {data}\n\n"
                now = time.monotonic()
                if events:
                    sent_at = now
                elif now - sent_at > COMMENT_SECONDS:
                    sent_at = now
                    yield ": nothing new\n\n"
                await asyncio.sleep(POLL_SECONDS)
        except Exception:  # the connection ends, and the client opens another
            logger.warning("A stream of events ended early", exc_info=True)
            raise
        finally:
            self.listeners.discard(listener)

    async def _scan(self) -> dict[str, RunEntry]:
        async with self._scan_lock:
            if time.monotonic() - self._scanned_at >= SCAN_SECONDS:
                self._entries = await asyncio.to_thread(self._folder.scan)
                self._scanned_at = time.monotonic()
            return self._entries

    def _new_rows(self, listener: Listener) -> list[tuple[str, str]]:
        """The names and the data of events about runs whose files have changed."""
        found = []
        for run in sorted(listener.cursors):
            stamp = self._stamp(run)
            if run not in listener.stamps or listener.stamps[run] != stamp:
                listener.stamps[run] = stamp
                if event := self._new_rows_of(run, listener):
                    found.append(event)
        return found

    def _stamp(self, run: str) -> Stamp | None:
        try:
            return stamp_of(self._folder.path_of(run))
        except Refusal:
            return None

    def _new_rows_of(self, run: str, listener: Listener) -> tuple[str, str] | None:
        """An event for one client, whose cursor is moved; None where there is nothing new."""
        try:
            cursor = parse_cursor(listener.cursors[run])
            with open_metrics(self._folder.readable(run)) as metrics:
                if cursor is None:
                    listener.cursors[run] = str(metrics.cursor())
                    return None
                changes = metrics.since(cursor, listener.names, x=listener.x, points=MAX_ROWS)
        except Refusal:
            del listener.cursors[run]
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


def parse_listener(request: Request) -> Listener:
    """What a client wants to watch, from its query."""
    query = request.query_params
    runs = query.getlist("run")
    cursors = query.getlist("cursor")
    if len(runs) > MAX_RUNS:
        raise Refusal(400, f"At most {MAX_RUNS} runs can be watched at a time, not {len(runs)}.")
    given = dict(zip(runs, [*cursors, *[""] * len(runs)], strict=False))
    for cursor in given.values():
        parse_cursor(cursor)
    names = tuple(dict.fromkeys(query.getlist("name")))
    return Listener(given, names, query.get("x") or "step")


def parse_cursor(text: str) -> MetricsCursor | None:
    """A place in a run's metrics; None for the newest."""
    try:
        return MetricsCursor.parse(text) if text else None
    except ValueError:
        raise Refusal(
            400, f"cursor={text[:40]!r} is not from this server: read /api/curves again."
        ) from None


def _new_summaries(listener: Listener, entries: dict[str, RunEntry]) -> list[tuple[str, str]]:
    """An event with the summaries that the client does not have, and the runs that are gone."""
    known = listener.summaries
    listener.summaries = {run: entry.text for run, entry in entries.items()}
    if known is None:  # the client has read the table
        return []
    changed = [text for run, text in listener.summaries.items() if known.get(run) != text]
    removed = sorted(known.keys() - entries.keys())
    if not changed and not removed:
        return []
    return [("runs", f'{{"runs":[{",".join(changed)}],"removed":{to_json(removed)}}}')]


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
