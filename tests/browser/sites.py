"""Servers for browser tests: their pages are closed first, or each would complain of the server
that is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

from tests.dashboard.serving import Served
from tests.dashboard.serving import serving as serving_to_anyone

pages_of: dict[int, list[Page]] = defaultdict(list)  # open pages by the port of their server


@contextmanager
def serving(root: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    """A server of a folder until the end of the context."""
    with serving_to_anyone(root, host) as server:
        try:
            yield server
        finally:
            for page in pages_of.pop(server.port, ()):
                page.close()
