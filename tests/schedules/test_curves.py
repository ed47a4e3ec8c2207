"""Schedules as functions of the number of updates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.schedules import warmup_cosine, warmup_stable_decay


def test_a_cosine_runs_from_start_over_peak_to_floor() -> None:
    curve = [warmup_cosine(update, 12, peak=1.0, floor=0.2, warmup=4, start=0.0, cooldown=2) for update in range(15)]
    assert curve[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert curve[7] == pytest.approx(0.6)
    assert curve[10:] == pytest.approx([0.2] * 5)


def test_k_decay_keeps_the_value_high_for_longer() -> None:
    plain, late = (warmup_cosine(4, 8, peak=1.0, k_decay=k) for k in (1.0, 2.0))
    assert plain == pytest.approx(0.5)
    assert late > 0.8


@given(total=st.integers(1, 60), warmup=st.integers(0, 60), cooldown=st.integers(0, 60), update=st.integers(0, 90))
def test_a_cosine_never_leaves_its_range(total: int, warmup: int, cooldown: int, update: int) -> None:
    value = warmup_cosine(update, total, peak=1.0, floor=0.1, warmup=warmup, start=0.05, cooldown=cooldown)
    assert 0.05 <= value <= 1.0


def test_stable_decay_returns_to_its_peak_after_each_end_but_the_last() -> None:
    curve = [
        warmup_stable_decay(update, [10, 20], peak=1.0, floor=0.1, decay_ratio=0.4, shape="linear")
        for update in range(22)
    ]
    assert curve[:7] == [1.0] * 7
    assert curve[8] == pytest.approx(0.55)
    assert curve[10:17] == [1.0] * 7
    assert curve[20:] == [0.1, 0.1]


@pytest.mark.parametrize(("shape", "middle"), [("inverse", 1 / (2 / 1.0 + 0.5)), ("sqrt", 0.5 + 0.5 * (1 - 0.5**0.5))])
def test_shapes_of_decay(shape: str, middle: float) -> None:
    floor = 0.25 if shape == "inverse" else 0.5
    value = warmup_stable_decay(5, [10], peak=1.0, floor=floor, decay_ratio=1.0, shape=shape)  # type: ignore[arg-type]
    assert value == pytest.approx(middle)
