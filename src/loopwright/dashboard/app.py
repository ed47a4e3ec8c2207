"""The server of the live page: the address it listens on, its routes, and how each request is
answered. Starlette and uvicorn are imported when they are used."""

from __future__ import annotations

import errno
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, LoopwrightError
from . import comparison, curves, detail
from .answers import (
    Refusal,
    answer,
    error_answer,
    find_plotly,
    json_answer,
    missing_extra,
    number,
    page,
    plain,
    static_file,
    to_json,
    whole_number,
)
from .folder import RunsFolder, open_metrics
from .live import LiveEvents
from .safety import Access, AccessGuard, is_loopback

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("loopwright")

MAX_POINTS = 20_000
MAX_LOG = 20_000
LARGEST_ID = 2**62
LARGEST_PORT = 65_535
MAX_TRIES = 100  # ports after the one that is asked for
SECONDS_TO_END = 3  # for answers under way
ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the page is: a socket that is bound, and the URL to open."""

    socket: socket.socket
    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        name = socket.gethostname() if self.host in ANY else self.host
        name = f"[{name}]" if ":" in name else name
        query = "" if self.token is None else f"?token={self.token}"
        return f"http://{name}:{self.port}/{query}"


def bind(host: str, port: int) -> Address:
    """Bind the first free port from the given one on; a host that others reach has a token.

    Args:
        host: A name or an address of this machine.
        port: The port; 0 takes any that is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = min(port + MAX_TRIES, LARGEST_PORT) if port else 0
    for candidate in range(port, last + 1) if port >= 0 else ():
        try:
            listening = socket.create_server((host, candidate), family=family)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                continue
            raise ConfigurationError(
                "unusable-address",
                f"{host}:{candidate}: {error}. Use an address of this machine, and a port above "
                "1023.",
            ) from error
        place = listening.getsockname()
        is_local = is_loopback(host) and is_loopback(place[0])
        token = None if is_local else secrets.token_urlsafe(24)
        return Address(listening, host, place[1], token)
    raise ConfigurationError(
        "unusable-address",
        f"--port {port}: no port up to {last} is free. Use 1 to {LARGEST_PORT}, or 0 for any.",
    )


def serve(folder: RunsFolder, address: Address, started: Callable[[], None] = lambda: None) -> None:
    """Serve the page until Ctrl-C.

    Args:
        folder: The runs.
        address: Where to serve.
        started: Called when requests are answered.
    """
    try:
        build_server(folder, address, started).run(sockets=[address.socket])
    except KeyboardInterrupt:  # how such a server ends
        pass
    finally:
        address.socket.close()


def build_server(
    folder: RunsFolder, address: Address, started: Callable[[], None]
) -> uvicorn.Server:
    """The server of a folder at an address; see `serve`."""
    try:
        import uvicorn
    except ImportError as error:
        raise missing_extra() from error

    find_plotly()  # an error now, rather than a page without charts
    app = build_app(folder, Access(address.token, f"loopwright_token_{address.port}"))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.live.close()  # streams of events never end by themselves
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",  # what goes wrong is said by us, in a line
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=SECONDS_TO_END,
    )
    return Server(config)


# Requests


def build_app(folder: RunsFolder, access: Access | None = None) -> Starlette:
    """The application: everything is read from the folder when it is asked for."""
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route
    except ImportError as error:
        raise missing_extra() from error

    data = RunAnswers(folder)
    live = LiveEvents(folder)
    endpoints = {
        "/api/runs": data.runs,
        "/api/curves": data.curves,
        "/api/csv": data.csv,
        "/api/events": data.events,
        "/api/compare": data.compare,
        "/api/sweep": data.sweep,
        "/api/run/{run:path}": data.run,
        "/api/checkpoints/{run:path}": data.checkpoints,
        "/api/log/{run:path}": data.log,
        "/api/contents/{run:path}": data.contents,
        "/api/media/{run:path}/{item:int}": data.media,
        "/static/{name:path}": static_file,
        "/{path:path}": page,
    }

    app = Starlette(
        routes=[
            Route("/api/live", live.stream),
            *(Route(path, answering(endpoint)) for path, endpoint in endpoints.items()),
        ],
        middleware=[Middleware(AccessGuard, access=access or Access())],
    )
    app.state.live = live
    return app


def answering(endpoint: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """An endpoint whose errors are answers; it runs in a thread, since it reads files."""

    def call(request: Request) -> Response:
        try:
            return endpoint(request)
        except Refusal as refusal:
            return error_answer(refusal.status, str(refusal))
        except (LoopwrightError, OSError) as error:  # damaged, or removed while it was read
            return error_answer(404, str(error))
        except Exception as error:
            # files of a run may hold anything; other runs are served all the same
            logger.warning("%s cannot be answered", request.url.path, exc_info=True)
            return error_answer(404, f"This cannot be read: {type(error).__name__}: {error}"[:500])

    return call


class RunAnswers:
    """The answers about runs, each a function of a request."""

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self._curves = curves.CurveAnswers(folder)

    def runs(self, request: Request) -> Response:
        """The table of runs."""
        entries = self.folder.scan()
        head = {
            "root": self.folder.shown,
            "path": str(self.folder.root),
            "is_single": self.folder.is_single,
            "exists": self.folder.root.is_dir(),
        }
        runs = ",".join(entry.text for entry in entries.values())
        return answer(request, f'{to_json(plain(head))[:-1]},"runs":[{runs}]}}')

    def curves(self, request: Request) -> Response:
        """Curves at the resolution of a screen."""
        query = request.query_params
        window = curves.CurveWindow(
            x=query.get("x") or "step",
            first=number(request, "first"),
            last=number(request, "last"),
            points=whole_number(request, "points", 1000, least=2, most=MAX_POINTS),
        )
        text = self._curves.answer(query.getlist("run"), query.getlist("name"), window)
        return answer(request, text)

    def events(self, request: Request) -> Response:
        """The events of some runs, to be marked on their curves; a run that cannot be read has
        none."""
        found: dict[str, list[detail.Json]] = {}
        for run in request.query_params.getlist("run"):
            found[run] = []
            with (
                suppress(Refusal, LoopwrightError, OSError),
                open_metrics(self.folder.readable(run)) as metrics,
            ):
                found[run] = [asdict(event) for event in metrics.events()]
        return json_answer(request, {"events": found})

    def csv(self, request: Request) -> Response:
        """All values as CSV."""
        from starlette.responses import StreamingResponse

        query = request.query_params
        runs = query.getlist("run")
        if not runs:
            raise Refusal(400, "Name at least one run: /api/csv?run=first&name=loss")
        lines = curves.csv_lines(self.folder, runs, query.getlist("name"))
        lines = chain([next(lines)], lines)  # most errors come with the first part
        sent = {
            "Content-Disposition": 'attachment; filename="metrics.csv"',
            "Cache-Control": "no-store",
        }
        return StreamingResponse(lines, headers=sent, media_type="text/csv; charset=utf-8")

    def run(self, request: Request) -> Response:
        """One run whole."""
        entry = self.folder.entry(request.path_params["run"])
        if entry.problem is not None:
            raise Refusal(403, entry.problem)
        run = self.folder.run(entry.id)
        with open_metrics(run.path) as metrics:
            return json_answer(request, detail.describe(entry, run, metrics))

    def checkpoints(self, request: Request) -> Response:
        """The checkpoints, with their hashes compared on request."""
        run = self.folder.run(request.path_params["run"])
        verify = request.query_params.get("verify") in ("1", "true")
        return json_answer(request, {"checkpoints": detail.checkpoints(run, verify=verify)})

    def log(self, request: Request) -> Response:
        """The end of the log."""
        path = self.folder.readable(request.path_params["run"])
        last = whole_number(request, "last", detail.LOG_LINES, least=1, most=MAX_LOG)
        with open_metrics(path) as metrics:
            return json_answer(request, {"log": detail.read_log(path, metrics, last)})

    def contents(self, request: Request) -> Response:
        """Histograms, texts or tables of a name."""
        path = self.folder.readable(request.path_params["run"])
        points = whole_number(request, "points", 200, least=1, most=MAX_POINTS)
        name = request.query_params.get("name", "")
        with open_metrics(path) as metrics:
            return json_answer(request, detail.contents(metrics, name, points))

    def media(self, request: Request) -> Response:
        """A picture, or the content of another item."""
        path = self.folder.readable(request.path_params["run"])
        number: int = request.path_params["item"]
        with open_metrics(path) as metrics:
            item = metrics.media_item(number) if number < LARGEST_ID else None
        if item is None:
            raise Refusal(404, "The run has no such picture; it may have been rewound.")
        if item.kind == "image":
            return answer(request, detail.media_file(path, item), kind="image/png")
        found = {"id": item.id, "name": item.name, "kind": item.kind, "content": item.content}
        return json_answer(request, found)

    def compare(self, request: Request) -> Response:
        """Differences between runs."""
        runs = dict.fromkeys(request.query_params.getlist("run"))
        return json_answer(request, comparison.compare({run: self.folder.run(run) for run in runs}))

    def sweep(self, request: Request) -> Response:
        """The runs of a folder with the parameters that vary."""
        folder = request.query_params.get("folder", "").strip("/")
        return json_answer(request, comparison.sweep(self.folder.scan().values(), folder))
