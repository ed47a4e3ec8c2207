"""Answers to requests: strict JSON, compressed where it pays, errors that are sentences, and the
files of the page, with plotly.js out of the installed package."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError
from ..trees import as_json, map_leaves

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_EXACT = 2**53  # of the integers that JavaScript can represent
WORTH_COMPRESSING = 2_000  # bytes
LEVEL = 1  # fast: most clients are on the same machine
REVALIDATE = "no-cache"  # a browser may keep an answer, and asks whether it is still true
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


class Refusal(Exception):  # noqa: N818
    """A request that is answered with an error: a status code and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def plain(value: object) -> Any:
    """A value as JavaScript has it: numbers that JSON lacks are None, large integers texts."""
    return map_leaves(
        lambda leaf: str(leaf) if type(leaf) is int and abs(leaf) > LARGEST_EXACT else leaf,
        as_json(value, nonfinite="null"),
    )


def to_json(value: object) -> str:
    """Strict and compact JSON; the value must be plain already, or hold only what JSON has."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_answer(request: Request, value: object) -> Response:
    """Any value as JSON; see `answer`."""
    return answer(request, to_json(plain(value)))


def answer(
    request: Request,
    body: bytes | str,
    *,
    kind: str = "application/json",
    tagged: str | None = None,
) -> Response:
    """A response with an ETag: 304 where the client has it, compressed where the client takes that.

    Args:
        request: The request.
        body: What is sent.
        kind: The media type.
        tagged: The part of the body that counts for the ETag; by default all of it.
    """
    from starlette.responses import Response

    data = body.encode() if isinstance(body, str) else body
    tag = tag_of(data if tagged is None else tagged.encode())
    sent = {"Cache-Control": REVALIDATE, "ETag": tag, "Vary": "Accept-Encoding, Cookie"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if len(data) > WORTH_COMPRESSING and accepts_gzip(request) and not kind.startswith("image/"):
        data = gzip.compress(data, LEVEL, mtime=0)
        sent["Content-Encoding"] = "gzip"
    return Response(data, 200, sent, media_type=kind)


def tag_of(data: bytes) -> str:
    return f'W/"{sha256(data).hexdigest()[:20]}"'


def accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def error_answer(status: int, text: str) -> Response:
    """An error as JSON."""
    from starlette.responses import Response

    sent = {"Cache-Control": "no-store"}
    return Response(to_json({"error": text}), status, sent, media_type="application/json")


def number(request: Request, name: str) -> float | None:
    """A number of the query; None where it is absent or empty."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Refusal(400, f"{name}={text[:40]!r} is not a number.")
    return value


def whole_number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """A whole number of the query, within limits."""
    given = number(request, name)
    if given is None:
        return default
    if not least <= given <= most:
        raise Refusal(400, f"{name}={given:g}: use {least} to {most}.")
    return int(given)


# Files of the page


def missing_extra() -> MissingExtraError:
    """The error about packages of the page that are not installed."""
    return MissingExtraError(
        "ui-extra",
        "The page needs starlette, uvicorn and plotly: pip install 'loopwright[ui]'.",
    )


def find_plotly() -> Path:
    """The file plotly.min.js of the installed package, which is not imported."""
    found = importlib.util.find_spec("plotly")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place, "package_data", PLOTLY)
        if path.is_file():
            return path
    raise missing_extra()


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a resolved path is below a folder."""
    return path != folder and path.is_relative_to(folder)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file in memory, with what a browser is to know of it."""

    stamp: tuple[int, int]
    data: bytes
    packed: bytes
    tag: str
    kind: str


class StaticFiles:
    """Files that are read once, and again when they change."""

    def __init__(self) -> None:
        self._files: dict[Path, StaticFile] = {}

    def file(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params["name"]
        return self._answer(request, find_plotly() if name == PLOTLY else self._path(name))

    def page(self, request: Request) -> Response:
        """The page itself, for every address that is not a file's."""
        path: str = request.path_params["path"]
        is_file = "." in path.rpartition("/")[2]
        if is_file or path.partition("/")[0] in ("api", "static"):
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

        file = self._read(path)
        sent = {"ETag": file.tag, "Cache-Control": REVALIDATE, "Vary": "Accept-Encoding"}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=sent)
        data = file.data
        if accepts_gzip(request):
            data = file.packed
            sent["Content-Encoding"] = "gzip"
        return Response(data, 200, sent, media_type=file.kind)

    def _read(self, path: Path) -> StaticFile:
        found = os.stat(path)
        stamp = (found.st_mtime_ns, found.st_size)
        known = self._files.get(path)
        if known is None or known.stamp != stamp:
            data = path.read_bytes()
            packed = gzip.compress(data, 5, mtime=0)
            known = StaticFile(stamp, data, packed, tag_of(data), KINDS[path.suffix])
            self._files[path] = known
        return known
