"""Curves at the resolution of a screen: the truth when thinned, every value when zoomed, along any
axis."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.metrics.rows import StepRow
from loopwright.run import MetricsStore, MetricsView
from loopwright.run.curves import step_curve
from loopwright.run.metrics_view import MetricsCursor
from loopwright.run.schema import open_for_reading
from tests.demo_runs import grow, make_demo_run
from tests.runs import steps_of

ROWS = 40_000


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    random = np.random.default_rng(0)
    values = random.normal(size=ROWS)
    values[random.integers(0, ROWS, 40)] = np.nan
    values[random.integers(0, ROWS, 10)] = np.inf
    values[12_345] = 1e6  # a spike of one step
    return values


@pytest.fixture(scope="module")
def path(values: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose steps have 2 samples each, two steps an update, ten epochs, a pause after step
    20,000."""
    path = tmp_path_factory.mktemp("run") / "metrics.sqlite"
    store = MetricsStore(path)
    for first in range(0, ROWS, 4000):
        part = enumerate(values[first : first + 4000], start=first + 1)
        store.add_steps(
            StepRow(
                (step + 1) // 2,
                step,
                first // 4000,
                2 * step,
                step / 100,
                {"loss": value, "lr": 1 / step},
            )
            for step, value in part
        )
        last = first + 4000
        wall = 1000.0 + last / 100 + (500 if last > 20_000 else 0)
        store._queue[-1] = type(store._queue[-1])(store._queue[-1].rows, wall)
        place = {"step": last, "samples": 2 * last, "seconds": last / 100, "wall": wall}
        store.add_epoch(last // 4000, last // 2, {"eval_loss": 1 / last}, **place)
        store.flush()
    store.close()
    return path


def check(curve, steps: np.ndarray, values: np.ndarray, points: int) -> None:
    """A curve has each value in one column, and says the truth of all of them."""
    assert len(curve.places) <= points + 1
    assert sum(curve.count) == len(values) == curve.total
    assert sum(curve.nonfinite) == np.count_nonzero(~np.isfinite(values))
    ends = np.cumsum(curve.count)
    for number, end in enumerate(ends.tolist()):
        part = values[end - curve.count[number] : end]
        where = steps[end - curve.count[number] : end]
        assert where[0] <= curve.places[number] <= where[-1]
        known, finite = part[~np.isnan(part)], part[np.isfinite(part)]
        if known.size:
            assert (curve.min[number], curve.max[number]) == (known.min(), known.max())
        assert math.isclose(
            curve.mean[number], finite.mean() if finite.size else math.nan, rel_tol=1e-9
        ) or (not finite.size or len(part) == 1)


@given(st.integers(1, ROWS), st.integers(0, ROWS), st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_a_curve_of_any_range_and_resolution_is_the_truth(path, values, first, length, points):
    last = min(first + length, ROWS)
    curve = MetricsView(path).curve("loss", first=first, last=last, points=points)
    check(curve, np.arange(first, last + 1), values[first - 1 : last], points)


@pytest.mark.parametrize("points", [1, 7, 100, 1000, 5000])
@pytest.mark.parametrize("x", ["step", "update", "epoch", "samples", "seconds", "wall", "lr"])
def test_a_spike_of_one_step_is_in_every_curve(path, x, points):
    curve = MetricsView(path).curve("loss", x=x, points=points)
    assert 1e6 in curve.max or math.inf in curve.max
    assert (
        1e6 in MetricsView(path).curve("loss", x=x, first=None, last=None, points=points * 200).max
    )
    assert curve.every == round(ROWS / len(curve.places))


def test_a_range_may_go_beyond_the_run(path):
    view = MetricsView(path)
    assert view.curve("loss", first=-math.inf, last=math.inf).total == ROWS
    assert view.curve("loss", first=ROWS - 1, last=10**30).places == [ROWS - 1, ROWS]
    assert (
        view.curve("loss", first=ROWS + 1).places
        == view.curve("loss", x="wall", last=0).places
        == []
    )


AXES = {
    "update": (6001, 6000),
    "samples": (24_002, 24_000),
    "seconds": (120.01, 120),
    "epoch": (3.00025, 3),
}


@pytest.mark.parametrize("x", AXES)
def test_a_range_is_in_units_of_its_axis_and_both_ends_are_included(path, x):
    start, low = AXES[x]
    curve = MetricsView(path).curve("loss", x=x, first=low, last=start)
    assert (low, start) == pytest.approx((curve.places[0], curve.places[-1]), rel=1e-4)
    assert all(low <= place <= start for place in curve.places)


@pytest.fixture(scope="module")
def accumulating(tmp_path_factory: pytest.TempPathFactory) -> MetricsView:
    """A run with three steps an update, a log point every 17 steps, and epochs of growing
    length."""
    path = tmp_path_factory.mktemp("run") / "metrics.sqlite"
    store = MetricsStore(path)
    for first in range(1, 200, 17):
        steps = range(first, first + 17)
        store.add_steps(
            StepRow(-(-step // 3), step, 0, 5 * step, step / 7, {"loss": 1 / step})
            for step in steps
        )
    for epoch, step in enumerate((20, 60), start=1):
        store.add_epoch(epoch, step // 3, {"eval_loss": 0.5}, step=step)
    store.close()
    return MetricsView(path)


@given(
    st.sampled_from(["step", "update", "epoch", "samples", "seconds", "wall"]),
    *[st.none() | st.floats(-0.1, 1.1) | st.integers(0, 203)] * 2,
)
@settings(max_examples=100, deadline=None)
def test_a_range_has_every_value_whose_place_is_in_it_and_no_other(accumulating, x, low, high):
    whole = accumulating.curve("loss", x=x)
    ends = min(whole.places), max(whole.places)
    first, last = (  # a place, or a part of the way
        whole.places[end] if isinstance(end, int) else end and ends[0] + end * (ends[1] - ends[0])
        for end in (low, high)
    )
    expected = [
        (place, value)
        for place, value in zip(whole.places, whole.mean, strict=True)
        if (first is None or first <= place) and (last is None or place <= last)
    ]
    curve = accumulating.curve("loss", x=x, first=first, last=last)
    assert list(zip(curve.places, curve.mean, strict=True)) == expected
    thinned = accumulating.curve("loss", x=x, first=first, last=last, points=5)
    assert len(expected) <= thinned.total <= len(expected) + 2


def test_time_on_the_wall_has_the_pause_of_a_resumed_run(path):
    curve = MetricsView(path).curve("loss", x="wall", first=1199.985, last=1700.035)
    assert [round(place, 2) for place in curve.places] == [
        1199.99,
        1200.0,
        1700.01,
        1700.02,
        1700.03,
    ]


def test_a_metric_against_another_is_joined_by_steps(path, values):
    exact = MetricsView(path).curve("loss", x="lr", first=1 / 100, last=1 / 50)
    assert exact.places == [1 / step for step in range(50, 101)]
    assert exact.mean == values[49:100].tolist()
    whole = MetricsView(path).curve("loss", x="lr", points=50)
    assert sum(whole.count) == ROWS
    assert whole.places == sorted(whole.places, reverse=True)
    nowhere = MetricsView(path).curve("loss", x="lr", first=2, points=50)
    assert nowhere.places == []


def test_epochs_have_all_axes(path):
    view = MetricsView(path)
    assert view.curve("eval_loss", level="epoch").places == list(range(1, 11))
    assert view.curve("eval_loss", level="epoch", x="samples").places == [
        8000 * epoch for epoch in range(1, 11)
    ]
    assert view.curve("eval_loss", level="epoch", x="wall", first=1500).places == [
        1740 + 40 * epoch for epoch in range(5)
    ]
    assert view.curve("eval_loss", level="epoch", x="eval_loss").places == [
        1 / (4000 * epoch) for epoch in range(1, 11)
    ]


def test_the_work_for_a_curve_does_not_grow_with_the_run(tmp_path):
    """Counted in instructions of SQLite's own machine, a thousand at a time."""
    path = tmp_path / "metrics.sqlite"
    store = MetricsStore(path)
    costs = []
    for last in (10_000, 80_000):
        first = max([row[1] for row in steps_of(store)], default=0) + 1
        store.add_steps(
            StepRow(step, step, 0, step, step / 9, {"loss": 1.0, "lr": 1 / step})
            for step in range(first, last + 1)
        )
        store.flush()
        for x in ("step", "samples", "wall", "lr"):
            counted = [0]
            with closing(open_for_reading(path)) as connection:
                connection.set_progress_handler(
                    lambda counted=counted: counted.__setitem__(0, counted[0] + 1), 1000
                )
                step_curve(
                    connection, "loss", x, (last * 0.2, None) if x == "step" else (None, None), 100
                )
            costs.append(counted[0])
    store.close()
    assert max(costs) <= 60, costs


def test_only_what_is_new_is_given_since_a_cursor(tmp_path):
    run = make_demo_run(tmp_path / "run", steps=600, epochs=3)
    view = MetricsView(run / "metrics.sqlite")
    everything = view.since(MetricsCursor(), ["loss", "eval_loss"])
    assert (everything.steps["loss"].total, everything.epochs["eval_loss"].places) == (
        600,
        [200, 400, 600],
    )
    assert (len(everything.events), len(everything.media)) == (
        len(view.events()),
        len(view.media()),
    )
    assert everything.cursor == view.cursor() == MetricsCursor.parse(str(view.cursor()))
    nothing = view.since(everything.cursor, ["loss", "eval_loss"])
    assert (nothing.steps, nothing.epochs, nothing.events, nothing.media, nothing.log_lines) == (
        {},
        {},
        [],
        [],
        [],
    )
    grow(run, 50)
    assert view.since(everything.cursor, ["loss"], x="lr").steps["loss"].total == 50
    more = view.since(everything.cursor, ["loss", "lr", "absent"], x="samples")
    assert not more.is_reset
    assert more.steps.keys() == {"loss", "lr"}
    assert more.steps["loss"].places == [32 * step for step in range(601, 651)]


def test_after_a_resume_that_removed_rows_all_is_given_again(tmp_path):
    run = make_demo_run(tmp_path / "run", steps=600, epochs=3)
    view = MetricsView(run / "metrics.sqlite")
    cursor = view.cursor()
    store = MetricsStore(run / "metrics.sqlite")
    store.truncate(step=500, epoch=2)
    store.close()
    changes = view.since(cursor, ["loss"])
    assert (changes.is_reset, changes.steps["loss"].total, changes.epochs["loss"].places) == (
        True,
        500,
        [200, 400],
    )
    (run / "metrics.sqlite").unlink()
    assert view.since(changes.cursor, ["loss"]).is_reset


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "a.b.c.d.e.f", "1.2.3.4.5.-6", "1.2.3.4.5.6.7", "9" * 40 + ".0.0.0.0.0"]
)
def test_a_text_that_is_no_cursor_is_refused(text):
    with pytest.raises(ValueError, match="is not a cursor"):
        MetricsCursor.parse(text)
