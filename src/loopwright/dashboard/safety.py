"""Who may see the page: the token of a server that others reach, the Host header, and what browsers
may load.

A page of another site can send requests to a server on this machine, but not read the answers: no
header allows it. A name that leads to this machine (DNS rebinding) would be a way around that,
hence the check of the Host header.
"""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from .answers import error_answer

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
# Plotly fills an empty <style> through the CSSOM (the first hash), brings the sheet of its maps (the
# second, of plotly 7; without it a browser only logs that), and sets attributes `style`. It needs no
# eval and no inline script.
STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' "
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
)
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {STYLES}; style-src-attr "
    "'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
CLOSED_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Loopwright</title></head><body>
<h1>A token is needed</h1>
<p>This page is open to other machines, so it asks for the token that <code>loopwright ui</code> printed when it was
started. Open the address that it printed, which ends in <code>?token=…</code>.</p></body></html>
"""


def is_loopback(host: str) -> bool:
    """Whether a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the page: anybody on this machine, or whoever has the token.

    Args:
        token: None where the server listens on a loopback address only.
        cookie: The name of the cookie; browsers share cookies between the ports of a host.
    """

    token: str | None = None
    cookie: str = "loopwright_token"

    def fits(self, given: str | None) -> bool:
        """Whether a token is the right one, in a time that does not depend on it."""
        if self.token is None or given is None:
            return self.token is None
        return secrets.compare_digest(_digest(self.token), _digest(given))


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


class AccessGuard:
    """Middleware that refuses requests before any route sees them, and adds the headers of every
    answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        is_data = scope["path"].startswith("/api")
        if scope["method"] not in ("GET", "HEAD"):
            return error_answer(405, "This server only answers GET: it changes nothing.")
        if self.access.token is None and not _is_local(headers.get(b"host", "")):
            return error_answer(
                403,
                "The Host header is not this machine: open the page as http://localhost or "
                "http://127.0.0.1.",
            )
        if is_data and headers.get(b"sec-fetch-site") == "cross-site":
            return error_answer(403, "Other sites may not read runs.")
        return self._without_token(scope, headers, is_data=is_data)

    def _without_token(
        self, scope: Scope, headers: dict[bytes, str], *, is_data: bool
    ) -> Response | None:
        """None where the request has the token; a redirect that sets the cookie where the address
        has it."""
        from starlette.responses import HTMLResponse, RedirectResponse

        access = self.access
        if access.token is None or access.fits(_cookie(headers.get(b"cookie", ""), access.cookie)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if access.fits(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            path = "/" + scope["path"].lstrip("/\\")  # never the address of another host
            response: Response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            response.set_cookie(
                access.cookie, access.token, httponly=True, samesite="lax", max_age=30 * 86400
            )
            return response
        if is_data:
            return error_answer(
                401, "The token is missing or wrong: open the address that `loopwright ui` printed."
            )
        return HTMLResponse(CLOSED_PAGE, 401, {"Cache-Control": "no-store"})


def _is_local(host: str) -> bool:
    """Whether a Host header names this machine; a request without one comes from no browser."""
    name, _, port = host.rpartition(":")
    if not port.isdigit() or host.endswith("]"):
        name = host
    return name.strip("[]").lower().rstrip(".") in LOCAL_NAMES or is_loopback(name)


def _cookie(header: str, name: str) -> str | None:
    """The value of a cookie; those of other programs on this host may be anything."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for known, _, value in pairs if known == name), None)
