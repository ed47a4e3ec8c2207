"""The files of the page, and plotly.js out of the installed package."""

from __future__ import annotations

import gzip
import importlib.util
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingExtraError
from .answers import REVALIDATE, Refusal, accepts_gzip
from .folder import is_inside

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STATIC = Path(__file__).resolve().parent / "static"
PLOTLY = "plotly.min.js"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
}


def find_plotly() -> Path:
    """The file plotly.min.js of the installed package, which is not imported."""
    found = importlib.util.find_spec("plotly")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place, "package_data", PLOTLY)
        if path.is_file():
            return path
    raise MissingExtraError("The page needs plotly for its charts: pip install 'loopwright[ui]'.")


@dataclass(frozen=True, slots=True)
class Content:
    """A file in memory, with what a browser is to know of it."""

    stamp: tuple[int, int]
    data: bytes
    packed: bytes
    tag: str
    kind: str


class StaticFiles:
    """Files that are read once, and again when they change."""

    def __init__(self) -> None:
        self._contents: dict[Path, Content] = {}

    def file(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params["name"]
        return self._answer(request, find_plotly() if name == PLOTLY else self._path(name))

    def page(self, request: Request) -> Response:
        """The page itself, for every address that is not a file's."""
        path: str = request.path_params["path"]
        if (
            "." in path.rpartition("/")[2]
            or path.startswith(("api/", "static/"))
            or path in ("api", "static")
        ):
            raise Refusal(404, "There is nothing at this address.")
        return self._answer(request, self._path("index.html"))

    def _path(self, name: str) -> Path:
        try:
            path = (STATIC / name).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            path = STATIC
        if not is_inside(path, STATIC) or not path.is_file() or path.suffix not in KINDS:
            raise Refusal(404, "The page has no such file.")
        return path

    def _answer(self, request: Request, path: Path) -> Response:
        from starlette.responses import Response

        content = self._content(path)
        sent = {"ETag": content.tag, "Cache-Control": REVALIDATE, "Vary": "Accept-Encoding"}
        if content.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=sent)
        if accepts_gzip(request):
            return Response(
                content.packed, 200, {**sent, "Content-Encoding": "gzip"}, media_type=content.kind
            )
        return Response(content.data, 200, sent, media_type=content.kind)

    def _content(self, path: Path) -> Content:
        found = os.stat(path)
        stamp = (found.st_mtime_ns, found.st_size)
        known = self._contents.get(path)
        if known is None or known.stamp != stamp:
            data = path.read_bytes()
            tag = f'W/"{sha256(data).hexdigest()[:20]}"'
            known = Content(stamp, data, gzip.compress(data, 5, mtime=0), tag, KINDS[path.suffix])
            self._contents[path] = known
        return known
