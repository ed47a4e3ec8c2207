"""Answers to requests: strict JSON, compressed where it pays, and errors that are sentences."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST_EXACT = 2**53  # of the integers that JavaScript can represent
WORTH_COMPRESSING = 2_000  # bytes
LEVEL = 1  # fast: most clients are on the same machine
REVALIDATE = "no-cache"  # a browser may keep an answer, and asks whether it is still true


class Refusal(Exception):  # noqa: N818
    """A request that is answered with an error: a status code and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def plain(value: object) -> Any:
    """A value as JSON has it: numbers that it lacks become None, keys and other objects texts."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -LARGEST_EXACT <= value <= LARGEST_EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): plain(entry) for key, entry in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return str(value)


def to_json(value: object) -> str:
    """Strict and compact JSON; the value must be plain already, or hold only what JSON has."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def answer(
    request: Request,
    body: bytes | str,
    *,
    kind: str = "application/json",
    status: int = 200,
    tagged: str | None = None,
) -> Response:
    """A response with an ETag: 304 where the client has it, compressed where the client takes that.

    Args:
        request: The request.
        body: What is sent.
        kind: The media type.
        status: The status code.
        tagged: The part of the body that counts for the ETag; by default all of it.
    """
    from starlette.responses import Response

    data = body.encode() if isinstance(body, str) else body
    tag = f'W/"{sha256(data if tagged is None else tagged.encode()).hexdigest()[:20]}"'
    sent = {"Cache-Control": REVALIDATE, "ETag": tag, "Vary": "Accept-Encoding, Cookie"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=sent)
    if len(data) > WORTH_COMPRESSING and accepts_gzip(request) and not kind.startswith("image/"):
        data = gzip.compress(data, LEVEL, mtime=0)
        sent["Content-Encoding"] = "gzip"
    return Response(data, status, sent, media_type=kind)


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")


def error_answer(status: int, text: str) -> Response:
    """An error as JSON."""
    from starlette.responses import Response

    return Response(
        to_json({"error": text}),
        status,
        {"Cache-Control": "no-store"},
        media_type="application/json",
    )


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
