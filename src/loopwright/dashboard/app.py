"""The server of the live page: its routes, and how each request is answered. Starlette is imported
when it is used."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING

from .._version import __version__
from ..errors import LoopwrightError, MissingExtraError
from . import comparison, curves, detail
from .answers import Refusal, answer, error_answer, number, plain, to_json, whole_number
from .folder import RunsFolder
from .safety import Access, Guard
from .static import StaticFiles
from .stores import Stores

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("loopwright")

EXTRA = "The page needs starlette, uvicorn and plotly: pip install 'loopwright[ui]'."
MAX_POINTS = 20_000
MAX_LOG = 20_000
LARGEST_ID = 2**62


def build_app(folder: RunsFolder, access: Access | None = None) -> Starlette:
    """The application: everything is read from the folder when it is asked for."""
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError(EXTRA) from error
    from .live import Live

    stores = Stores()
    static = StaticFiles()
    data = Data(folder, stores)
    live = Live(folder, stores)
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
        "/static/{name:path}": static.file,
        "/{path:path}": static.page,
    }

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        live.close()
        stores.close()

    app = Starlette(
        routes=[
            Route("/api/live", live.stream),
            *(Route(path, answering(endpoint)) for path, endpoint in endpoints.items()),
        ],
        middleware=[Middleware(Guard, access=access or Access())],
        lifespan=lifespan,
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
        except (
            Exception
        ) as error:  # files of a run may hold anything; other runs are served all the same
            logger.warning("%s cannot be answered", request.url.path, exc_info=True)
            return error_answer(404, f"This cannot be read: {type(error).__name__}: {error}"[:500])

    return call


def said_when_cut_short(parts: Iterator[str]) -> Iterator[str]:
    """The parts of an answer that is sent as it is read; an error ends the connection, so that the
    client knows."""
    try:
        yield from parts
    except (LoopwrightError, OSError) as error:
        logger.warning("A download ended early: %s", error)
        raise


class Data:
    """The answers about runs, each a function of a request."""

    def __init__(self, folder: RunsFolder, stores: Stores) -> None:
        self.folder = folder
        self.stores = stores
        self._curves = curves.Curves(folder, stores)

    def runs(self, request: Request) -> Response:
        """The table of runs."""
        entries = self.folder.scan()
        head = {
            "root": self.folder.shown,
            "path": str(self.folder.root),
            "is_single": self.folder.is_single,
            "exists": self.folder.root.is_dir(),
            "version": __version__,
        }
        known = to_json(plain(head))[1:-1]
        runs = ",".join(entry.text for entry in entries.values())
        body = f'{{{known},"time":{time.time()!r},"runs":[{runs}]}}'
        return answer(request, body, tagged=f"{known}{runs}")

    def curves(self, request: Request) -> Response:
        """Curves at the resolution of a screen."""
        query = request.query_params
        window = curves.Window(
            x=query.get("x") or "step",
            first=number(request, "first"),
            last=number(request, "last"),
            points=whole_number(request, "points", 1000, least=2, most=MAX_POINTS),
            level=curves.parse_level(query.get("level", "")),
        )
        return answer(
            request, self._curves.answer(query.getlist("run"), query.getlist("name"), window)
        )

    def events(self, request: Request) -> Response:
        """The events of some runs, to be marked on their curves; a run that cannot be read has
        none."""
        found: dict[str, list[detail.Json]] = {}
        for run in dict.fromkeys(request.query_params.getlist("run")):
            found[run] = []
            with (
                suppress(Refusal, LoopwrightError, OSError),
                self.stores.opened(self.folder.readable(run)) as metrics,
            ):
                found[run] = [detail.as_event(event) for event in metrics.events()]
        return answer(request, to_json(plain({"events": found})))

    def csv(self, request: Request) -> Response:
        """All values as CSV."""
        from starlette.responses import StreamingResponse

        query = request.query_params
        runs = query.getlist("run")
        if not runs:
            raise Refusal(400, "Name at least one run: /api/csv?run=first&name=loss")
        paths = [(run, self.folder.readable(run)) for run in dict.fromkeys(runs)]
        lines = curves.csv_lines(self.stores, paths, query.getlist("name"))
        # most errors come with the first part
        lines = said_when_cut_short(chain([next(lines)], lines))
        sent = {
            "Content-Disposition": 'attachment; filename="metrics.csv"',
            "Cache-Control": "no-store",
        }
        return StreamingResponse(lines, headers=sent, media_type="text/csv; charset=utf-8")

    def run(self, request: Request) -> Response:
        """One run whole."""
        entry = self.folder.entry(request.path_params["run"])
        if entry.problem is not None:
            return answer(request, to_json(plain(detail.unreadable(entry))))
        view = self.folder.view(entry.id)
        with self.stores.opened(view.path) as metrics:
            return answer(request, to_json(plain(detail.Detail(entry, view, metrics).answer())))

    def checkpoints(self, request: Request) -> Response:
        """The checkpoints, with their hashes compared on request."""
        view = self.folder.view(request.path_params["run"])
        verify = request.query_params.get("verify") in ("1", "true")
        return answer(
            request, to_json(plain({"checkpoints": detail.checkpoints(view, verify=verify)}))
        )

    def log(self, request: Request) -> Response:
        """The end of the log."""
        view = self.folder.view(request.path_params["run"])
        last = whole_number(request, "last", detail.LOG_LINES, least=1, most=MAX_LOG)
        with self.stores.opened(view.path) as metrics:
            return answer(
                request, to_json(plain({"log": detail.read_log(view.path, metrics, last)}))
            )

    def contents(self, request: Request) -> Response:
        """Histograms, texts or tables of a name."""
        path = self.folder.readable(request.path_params["run"])
        points = whole_number(request, "points", 200, least=1, most=MAX_POINTS)
        with self.stores.opened(path) as metrics:
            found = detail.contents(metrics, request.query_params.get("name", ""), points)
        return answer(request, to_json(plain(found)))

    def media(self, request: Request) -> Response:
        """A picture, or the content of another item."""
        path = self.folder.readable(request.path_params["run"])
        number: int = request.path_params["item"]
        with self.stores.opened(path) as metrics:
            item = metrics.media_item(number) if number < LARGEST_ID else None
        if item is None:
            raise Refusal(404, "The run has no such picture; it may have been rewound.")
        if item.kind == "image":
            return answer(request, detail.media_file(path, item), kind="image/png")
        found = {"id": item.id, "name": item.name, "kind": item.kind, "content": item.content}
        return answer(request, to_json(plain(found)))

    def compare(self, request: Request) -> Response:
        """Differences between runs."""
        runs = list(dict.fromkeys(request.query_params.getlist("run")))[: comparison.MAX_RUNS + 1]
        return answer(
            request,
            to_json(plain(comparison.compare([(run, self.folder.view(run)) for run in runs]))),
        )

    def sweep(self, request: Request) -> Response:
        """The runs of a folder with the parameters that vary."""
        folder = request.query_params.get("folder", "").strip("/")
        return answer(
            request, to_json(plain(comparison.sweep(self.folder.scan().values(), folder)))
        )
