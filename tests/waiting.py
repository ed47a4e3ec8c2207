"""Waiting in tests for what must come: files, processes, rows that a thread writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 300.0  # seconds, far beyond a slow machine


def wait_for(condition: Callable[[], T], what: str = "it", *, seconds: float = PATIENCE) -> T:
    """Wait until a condition is true, and return what it gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come within {seconds:g} s"
        time.sleep(0.01)
    return found
