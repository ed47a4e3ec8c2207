"""The clock that tests move."""

from __future__ import annotations

import pytest

from .hand_clock import HandClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """Let every profile of a test go by a clock that stands still until the test moves it."""
    by_hand = HandClock()
    monkeypatch.setattr("loopwright.profiling.clock.now", by_hand)
    return by_hand
