"""Curves over a run: their values, and their lengths in epochs, updates or samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright import ConfigurationError
from loopwright.schedules import (
    Constant,
    Cosine,
    Extent,
    Linear,
    MultiStep,
    Polynomial,
    Sequential,
    WarmupCosine,
    warmup_cosine,
    warmup_stable_decay,
)

from ..mistakes import raises


def test_a_cosine_runs_from_start_over_peak_to_floor() -> None:
    curve = [
        warmup_cosine(update, 12, peak=1.0, floor=0.2, warmup=4, start=0.0, cooldown=2)
        for update in range(15)
    ]
    assert curve[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert curve[7] == pytest.approx(0.6)
    assert curve[10:] == pytest.approx([0.2] * 5)


def test_stable_decay_returns_to_its_peak_after_each_end_but_the_last() -> None:
    curve = [
        warmup_stable_decay(update, [10, 20], peak=1.0, floor=0.1, decay_ratio=0.4, shape="linear")
        for update in range(22)
    ]
    assert curve[:7] == [1.0] * 7
    assert curve[8] == pytest.approx(0.55)
    assert curve[10:17] == [1.0] * 7
    assert curve[20:] == [0.1, 0.1]


@pytest.mark.parametrize(
    ("shape", "middle"), [("inverse", 1 / (2 / 1.0 + 0.5)), ("sqrt", 0.5 + 0.5 * (1 - 0.5**0.5))]
)
def test_shapes_of_decay(shape: str, middle: float) -> None:
    floor = 0.25 if shape == "inverse" else 0.5
    value = warmup_stable_decay(5, [10], peak=1.0, floor=floor, decay_ratio=1.0, shape=shape)  # type: ignore[arg-type]
    assert value == pytest.approx(middle)


@pytest.mark.parametrize(
    ("curve", "values"),
    [
        (Constant(0.5), [0.5, 0.5, 0.5]),
        (Linear(1.0, 0.0), [1.0, 0.5, 0.0]),
        (Linear(2.0, 4.0), [2.0, 3.0, 4.0]),
        (Cosine(1.0, 0.2), [1.0, 0.6, 0.2]),
        (Polynomial(1.0, 0.0, 2.0), [1.0, 0.25, 0.0]),
        (WarmupCosine(0.5), [0.0, 1.0, 0.0]),
        (WarmupCosine(), [1.0, 0.5, 0.0]),
        (WarmupCosine(1.0), [0.0, 0.5, 0.0]),
        (MultiStep(0.1, at=[0.5, 1.0]), [1.0, 0.1, 0.01]),
        (Sequential([Linear(0.0, 1.0), Constant(3.0)], [0.5]), [0.0, 3.0, 3.0]),
        (Sequential([Linear(0.0, 1.0)], []), [0.0, 0.5, 1.0]),
    ],
)
def test_values_at_the_beginning_in_the_middle_and_at_the_end(curve, values):
    assert [curve.value(done) for done in (0.0, 0.5, 1.0)] == pytest.approx(values)


@given(st.floats(0, 0.99), st.floats(0, 1))
def test_a_warm_up_is_a_line_and_then_a_cosine(warmup, done):
    expected = (
        done / warmup
        if done < warmup
        else (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2
    )
    assert WarmupCosine(warmup).value(done) == pytest.approx(expected)


def test_what_is_counted_becomes_a_part_of_the_run():
    extent = Extent(epochs=10, updates=200)
    assert WarmupCosine(warmup_epochs=1).resolve(extent).value(0.05) == pytest.approx(0.5)
    assert WarmupCosine(warmup_updates=50).resolve(extent).value(0.25) == pytest.approx(1.0)
    assert MultiStep(0.5, at_epochs=[3, 20]).resolve(extent).value(0.3) == 0.5
    nested = Sequential([WarmupCosine(warmup_updates=50), Constant()], [0.5]).resolve(extent)
    assert nested.value(0.25) == pytest.approx(1.0)


def test_counting_in_a_run_of_unknown_length_is_refused():
    with raises("curve-length-unknown"):
        WarmupCosine(warmup_updates=5).resolve(Extent(epochs=3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: WarmupCosine(0.1, warmup_epochs=1),
        lambda: WarmupCosine(1.5),
        lambda: WarmupCosine(warmup_updates=-1),
        lambda: MultiStep(),
        lambda: MultiStep(at=[0.5], at_epochs=[1]),
        lambda: MultiStep(at=[5]),
        lambda: Polynomial(power=0.0),
        lambda: Sequential([], []),
        lambda: Sequential([Constant()], [0.5]),
        lambda: Sequential([Constant(), Constant()], [1.0]),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


# Applied
