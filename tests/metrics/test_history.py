"""What a run measured: rows, series that stay small, and pictures."""

from __future__ import annotations

import math
import sys

import pytest

from loopwright import History, MissingExtraError
from loopwright.metrics import history as history_module
from tests.metrics.step_rows import rows_from


def filled() -> History:
    history = History()
    for epoch in range(3):
        history.add_steps(
            rows_from(
                epoch * 10 + 1, [{"loss": 1.0 / (epoch * 10 + step + 1)} for step in range(10)]
            )
        )
        history.set_epoch(
            epoch,
            {"loss": 1.0 / (epoch + 1), "eval_loss": 2.0 / (epoch + 1), "accuracy": epoch / 3},
        )
    return history


def test_a_metric_is_a_list_of_epochs():
    history = filled()
    assert history["loss"] == [1.0, 0.5, 1 / 3]
    assert history.last("eval_loss") == 2 / 3
    assert history.names == ["loss", "eval_loss", "accuracy"]
    assert history.to_dict()["accuracy"] == [0.0, 1 / 3, 2 / 3]
    assert len(history) == 3
    assert "loss" in history
    assert "acc" not in history


def test_an_unknown_metric_names_the_known_ones():
    with pytest.raises(KeyError, match="no metric 'acc'; did you mean accuracy"):
        filled()["acc"]
    with pytest.raises(KeyError, match="no metric 'loss'"):
        History()["loss"]


def test_an_epoch_recorded_again_replaces_it_and_what_came_after():
    history = filled()
    history.set_epoch(1, {"loss": 9.0})
    assert history["loss"] == [1.0, 9.0]


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_long_series_is_thinned_evenly_and_never_longer_than_the_limit(monkeypatch, every):
    monkeypatch.setattr(history_module, "MAX_POINTS", 16)
    history = History()
    for step in range(1, 1001, every):
        history.add_steps(rows_from(step, [{"loss": float(step)}]))
        assert len(history.steps["loss"]) < 16
    series = history.steps["loss"]
    gaps = {b - a for a, b in zip(series.steps[:-1], series.steps[1:], strict=True)}
    assert len(gaps) == 1
    assert len(series) >= 7
    assert list(series.steps) == [int(value) for value in series.values]


@pytest.mark.parametrize("sizes", [[1] * 90, [40, 3, 40, 7], [13, 14, 15, 16, 17, 18], [0, 93, 0]])
def test_additions_one_after_the_other_are_the_history_itself(monkeypatch, sizes):
    """Also where points are dropped in between, more than once; and where a row is replaced."""
    monkeypatch.setattr(history_module, "MAX_POINTS", 16)
    history, copy = History(), History()
    for number, size in enumerate(sizes):
        first = sum(sizes[:number]) + 1
        history.add_steps(
            rows_from(
                first, [{"loss": 1 / step, "lr": -0.0} for step in range(first, first + size)]
            )
        )
        history.set_epoch(max(len(history) - number % 2, 0), {"loss": 1 / first, "late": math.nan})
        copy.extend(history.since(copy.extent))
        assert repr(copy.epochs) == repr(history.epochs)
        for name, series in history.steps.items():
            assert (copy.steps[name].stride, copy.steps[name].num_seen) == (
                series.stride,
                series.num_seen,
            )
            assert (copy.steps[name].steps, copy.steps[name].values) == (
                series.steps,
                series.values,
            )


def test_a_missing_package_names_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'loopwright\[plots\]'"):
        filled().plot()


def test_a_plot_shows_every_epoch_and_the_steps_behind():
    axis = filled().plot().axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines) == {"each step", "loss", "eval_loss"}
    assert list(lines["eval_loss"].get_xdata()) == [1, 2, 3]
    assert list(lines["loss"].get_ydata()) == [1.0, 0.5, 1 / 3]
    assert len(lines["each step"].get_xdata()) == 30


def test_state_comes_back():
    history, other = filled(), History()
    other.load_state_dict(history.state_dict())
    assert other.epochs == history.epochs
    assert list(other.steps["loss"]) == list(history.steps["loss"])
    assert (
        repr(other)
        == repr(history)
        == "History(3 epochs; loss 0.3333, eval_loss 0.6667, accuracy 0.6667)"
    )
    assert repr(History()) == "History(0 epochs; empty)"


def test_a_history_is_iterated_as_a_mapping_of_epoch_metrics():
    history = filled()
    assert list(history) == ["loss", "eval_loss", "accuracy"]
    assert dict(history) == dict(history.items()) == history.to_dict()
    assert list(history.keys()) == list(history)
    assert list(history.values()) == [history[name] for name in history]
    assert history.get("loss") == [1.0, 0.5, 1 / 3]
    assert history.get("acc") is None
    assert history.get("acc", []) == []
    assert len(history) == 3
