"""Serving the page: the address to listen on, the next free port, and an end without noise."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, MissingExtraError
from .app import EXTRA, build_app
from .folder import RunsFolder
from .safety import Access, is_loopback, new_token
from .static import find_plotly

if TYPE_CHECKING:
    import uvicorn

MAX_TRIES = 100  # ports after the one that is asked for
LARGEST_PORT = 65_535
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
    if not 0 <= port <= LARGEST_PORT:
        raise ConfigurationError(f"--port {port}: use 1 to {LARGEST_PORT}, or 0 for any free one.")
    try:
        family, _, _, _, place = socket.getaddrinfo(host or ANY[0], port, type=socket.SOCK_STREAM)[
            0
        ]
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"--host {host}: {error}. Use a name or an address of this machine."
        ) from error
    last = min(port + MAX_TRIES, LARGEST_PORT) if port else 0
    for candidate in range(port, last + 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((place[0], candidate))
            # two servers may bind one port, but only one can listen
            listening.listen(socket.SOMAXCONN)
        except OSError as error:
            listening.close()
            if error.errno == errno.EADDRINUSE:
                continue
            advice = (
                "a port above 1023" if error.errno == errno.EACCES else "an address of this machine"
            )
            raise ConfigurationError(
                f"{host}:{candidate}: {error.strerror}. Use {advice}."
            ) from error
        is_local = is_loopback(host) and is_loopback(str(place[0]))
        return Address(
            listening, host, listening.getsockname()[1], None if is_local else new_token()
        )
    raise ConfigurationError(
        f"No port from {port} to {last} is free: name another with --port, or 0 for any."
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
        raise MissingExtraError(EXTRA) from error

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
