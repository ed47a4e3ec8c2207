"""Few tries of few updates, and a clock that the tests set."""

from __future__ import annotations

import pytest

from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from tests.tuning.tries import HandClock


@pytest.fixture
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns of two timed updates each, and two cores on any machine."""
    monkeypatch.setattr(Tuner, "_num_updates", 2)
    monkeypatch.setattr(tune, "NUM_TURNS", 2)
    monkeypatch.setattr("loopwright.tuning.tune.num_cores", lambda: 2)


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(Tuner, "_clock", lambda tuner: clock.now)
    return clock
