"""Answers to requests: strict JSON, compressed where it pays, errors that are sentences, and the
files of the page, with plotly.js out of the installed package."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
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
) -> Response:
    """A response with an ETag: 304 where the client has it, compressed where the client takes that.

    Args:
        request: The request.
        body: What is sent.
        kind: The media type.
    """
    from starlette.responses import Response

    data = body.encode() if isinstance(body, str) else body
    tag = f'W/"{sha256(data).hexdigest()[:20]}"'
    sent = {"Cache-Control": REVALIDATE, "ETag": tag, "Vary": "Accept-Encoding, Cookie"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
    if len(data) > WORTH_COMPRESSING and takes_gzip and not kind.startswith("image/"):
        data = gzip.compress(data, LEVEL, mtime=0)
        sent["Content-Encoding"] = "gzip"
    return Response(data, 200, sent, media_type=kind)


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


def static_file(request: Request) -> Response:
    """A file of the page."""
    name = request.path_params["name"]
    if name == PLOTLY:
        return _file_answer(request, find_plotly())
    try:
        path = (STATIC / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        path = STATIC
    if not is_inside(path, STATIC) or not path.is_file() or path.suffix not in KINDS:
        raise Refusal(404, "The page has no such file.")
    return _file_answer(request, path)


def page(request: Request) -> Response:
    """The page itself, for every address that is not a file's."""
    path: str = request.path_params["path"]
    is_file = "." in path.rpartition("/")[2]
    if is_file or path.partition("/")[0] in ("api", "static"):
        raise Refusal(404, "There is nothing at this address.")
    return _file_answer(request, STATIC / "index.html")


def _file_answer(request: Request, path: Path) -> Response:
    return answer(request, path.read_bytes(), kind=KINDS[path.suffix])
