"""Calls of our own Python functions per step: as many as in calls_per_step.json, which is written
by this module.

After a change that is worth its calls: `python -m tests.guards.test_calls`, and look at the
difference in the file.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loopwright import Callback
from loopwright.callbacks import Profile
from loopwright.training import steps

from .counting import added, calls_per_step, python_calls_of_a_step
from .programs import PROGRAMS, by_hand, native, plain_step

STORED = Path(__file__).with_name("calls_per_step.json")
pytestmark = pytest.mark.usefixtures("rare_log_points")


class Idle(Callback):
    """A callback of epochs, which has nothing to do in a step."""

    def on_epoch_end(self, trainer: Any, metrics: Any) -> None:
        pass


@pytest.fixture(scope="module")
def stored() -> dict[str, Counter[str]]:
    return {name: Counter(calls) for name, calls in json.loads(STORED.read_text()).items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_makes_no_more_calls_than_when_they_were_last_counted(
    name: str, stored: dict[str, Counter[str]]
):
    now = calls_per_step(PROGRAMS[name]())
    assert now.total() <= stored[name].total(), f"{name}: {added(now, stored[name])}"


def test_the_native_step_makes_at_most_40_calls(stored: dict[str, Counter[str]]):
    # three of them take the place of more than thirty of torch's
    assert stored["native"].total() <= 40


def test_with_those_of_torch_a_step_makes_no_more_calls_than_the_tight_loop():
    assert python_calls_of_a_step(native()) < python_calls_of_a_step(
        by_hand(plain_step, fused=True)
    )


@pytest.mark.parametrize("number", [1, 20, 200])
def test_idle_callbacks_add_no_call(number: int):
    without = calls_per_step(native())
    with_idle = calls_per_step(native(callbacks=[Idle() for _ in range(number)]))
    assert with_idle == without, added(with_idle, without)


def test_a_profile_that_has_ended_adds_no_call():
    before = calls_per_step(native())
    train = native(callbacks=[Profile(warmup=1, steps=5)])
    train(10)
    ended = calls_per_step(train)
    assert ended == before, added(ended, before)
    assert calls_per_step(native(callbacks=[Profile()])).total() > before.total()
    after = calls_per_step(native())
    assert after == before, added(after, before)


def renew() -> None:
    """Count the calls of today and store them."""
    steps.FLUSH_SECONDS, steps.FLUSH_STEPS = 1e9, 10**9
    counts = {
        name: dict(sorted(calls_per_step(program()).items())) for name, program in PROGRAMS.items()
    }
    STORED.write_text(json.dumps(counts, indent=1) + "\n")
    print({name: sum(calls.values()) for name, calls in counts.items()})


if __name__ == "__main__":
    renew()
