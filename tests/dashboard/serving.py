"""A real server in a thread, and a client that sends what it is given, unchanged."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.dashboard.app import bind, build_server
from loopwright.dashboard.folder import RunsFolder

SECONDS = 120.0  # after which something that must come has not come


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body as strict JSON."""
        return json.loads(self.body, parse_constant=_refuse)

    @property
    def error(self) -> str:
        return self.data["error"]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@dataclass(frozen=True)
class Served:
    """A server that answers requests."""

    port: int
    token: str | None
    server: Any

    @property
    def live(self) -> Any:
        return self.server.config.app.state.live

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send one request; `_` in names of headers stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=sent)
            response = connection.getresponse()
            body = response.read()
            names = {name.lower(): value for name, value in response.getheaders()}
            if names.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            return Reply(response.status, names, body)
        finally:
            connection.close()

    def data(self, path: str) -> Any:
        """The JSON of a request that must succeed."""
        reply = self.get(path)
        assert reply.status == 200, reply.body
        return reply.data

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream, as (name, data); the connection is closed at the end of the
        context."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(
                "GET",
                path,
                headers={name.replace("_", "-"): value for name, value in headers.items()},
            )
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.getheader("content-type").startswith("text/event-stream")
            yield _parse(response)
        finally:
            connection.close()


def _parse(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    entries: dict[str, str] = {}
    end = time.monotonic() + SECONDS
    while line := response.readline():
        # comments keep a connection from its own time limit
        assert time.monotonic() < end, "the event did not come"
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            entries[name] = value
        else:
            if "data" in entries:
                end = time.monotonic() + SECONDS
                yield entries["event"], json.loads(entries["data"], parse_constant=_refuse)
            entries = {}


@contextmanager
def serving(root: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    """A server of a folder, in a thread of this process, until the end of the context."""
    address = bind(host, 0)
    started = threading.Event()
    server = build_server(RunsFolder(root), address, started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address.socket]})
    thread.start()
    try:
        assert started.wait(SECONDS)
        yield Served(address.port, address.token, server)
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()
        address.socket.close()
