"""What a run measured: rows, series that stay small, frames and pictures."""

from __future__ import annotations

import math
import sys
import tracemalloc
from array import array

import pytest
import torch

from loopwright import History, MissingExtraError
from loopwright.metrics import history as history_module
from loopwright.metrics.history import HistoryCopy, Series
from tests.metrics.step_rows import rows_from

from ..mistakes import raises


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


def test_a_metric_that_came_later_has_fewer_values():
    history = filled()
    history.set_epoch(3, {"loss": 0.1, "late": 7.0})
    assert history["late"] == [7.0]


def test_an_epoch_recorded_again_replaces_it_and_what_came_after():
    history = filled()
    history.set_epoch(1, {"loss": 9.0})
    assert history["loss"] == [1.0, 9.0]


def test_rows_are_copies():
    row = {"loss": 1.0}
    history = History()
    history.set_epoch(0, row)
    row["loss"] = 2.0
    assert history["loss"] == [1.0]


def test_steps_know_their_numbers():
    series = filled().steps["loss"]
    assert list(series.steps) == list(range(1, 31))
    assert list(series)[:2] == [1.0, 0.5]
    assert len(series) == 30


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


def test_a_thinned_series_goes_on_exactly_after_it_was_saved(monkeypatch):
    monkeypatch.setattr(history_module, "MAX_POINTS", 16)
    whole, first = History(), History()
    rows = [{"loss": float(step)} for step in range(1, 101)]
    whole.add_steps(rows_from(1, rows))
    first.add_steps(rows_from(1, rows[:53]))
    second = History()
    second.load_state_dict(first.state_dict())
    second.add_steps(rows_from(54, rows[53:]))
    assert (second.steps["loss"].steps, second.steps["loss"].values) == (
        whole.steps["loss"].steps,
        whole.steps["loss"].values,
    )


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


def test_additions_that_leave_a_gap_are_refused():
    history, copy = filled(), History()
    with pytest.raises(ValueError, match="rows from epoch 3 on, after 0 epochs"):
        copy.extend(history.since(history.extent))
    added = history.since(history.extent)
    copy.epochs = [{}, {}]
    with pytest.raises(ValueError, match="0 points of 30 values"):
        copy.extend(added)


class Watched(dict[str, float]):
    """A row that counts how often it is looked into."""

    looks = 0

    def __contains__(self, name: object) -> bool:
        Watched.looks += 1
        return super().__contains__(name)


def test_the_latest_value_of_a_metric_is_found_without_looking_at_all_epochs():
    history = History()
    history.epochs = [Watched(loss=float(epoch)) for epoch in range(1000)]
    assert history.last("loss") == 999.0
    assert "loss" in history
    assert Watched.looks == 2


def test_a_copy_is_made_again_for_what_is_new_and_afresh_when_the_history_was_loaded():
    history, copy = filled(), HistoryCopy()
    copy.take(history)
    history.set_epoch(3, {"loss": 0.1})
    history.add_steps(rows_from(31, [{"loss": 0.2}]))
    assert len(copy.state_dict()["epochs"]) == 3
    copy.take(history)
    other = History()
    other.load_state_dict(copy.state_dict())
    assert (other.epochs, other.steps["loss"].values) == (
        history.epochs,
        history.steps["loss"].values,
    )
    history.load_state_dict(filled().state_dict())
    copy.take(history)
    assert copy.state_dict()["epochs"] == filled().epochs


def test_a_frame_has_a_row_for_each_epoch():
    frame = filled().to_frame()
    assert list(frame.index) == [1, 2, 3]
    assert frame.index.name == "epoch"
    assert frame["eval_loss"].tolist() == [2.0, 1.0, 2 / 3]


def test_a_frame_of_steps_has_gaps_where_a_metric_was_not_measured():
    history = filled()
    history.add_steps(rows_from(31, [{"other": 5.0}]))
    frame = history.to_frame("steps")
    assert frame.index.name == "step"
    assert frame.loc[31, "other"] == 5.0
    assert math.isnan(frame.loc[31, "loss"])
    assert math.isnan(frame.loc[1, "other"])


def test_another_level_is_refused():
    with raises("frame-level", "'batches'", "'epochs'", "'steps'"):
        filled().to_frame("batches")


@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [("pandas", History.to_frame, "frames"), ("matplotlib.figure", History.plot, "plots")],
)
def test_a_missing_package_names_the_pip_command(monkeypatch, module, use, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'loopwright\[{extra}\]'"):
        use(filled())


def test_a_plot_is_a_picture_of_some_size(tmp_path):
    figure = filled().plot(tmp_path / "curves.png")
    content = (tmp_path / "curves.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) > 5000
    assert [axis.get_title() for axis in figure.axes] == ["loss", "accuracy"]


def test_a_plot_shows_every_epoch_and_the_steps_behind():
    axis = filled().plot().axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines) == {"each step", "loss", "eval_loss"}
    assert list(lines["eval_loss"].get_xdata()) == [1, 2, 3]
    assert list(lines["loss"].get_ydata()) == [1.0, 0.5, 1 / 3]
    assert len(lines["each step"].get_xdata()) == 30


def test_some_names_can_be_plotted(tmp_path):
    assert len(filled().plot(names=["accuracy"]).axes) == 1


def test_what_cannot_be_plotted_is_refused_by_name():
    with raises("nothing-to-plot"):
        filled().plot(names=["acc"])
    with raises("nothing-to-plot"):
        History().plot()


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


class Block(array):
    """An array that counts how often a single number is read from it."""

    num_read = 0

    def __getitem__(self, at):
        self.num_read += 1
        return super().__getitem__(at)

    def __iter__(self):
        self.num_read += len(self)
        return super().__iter__()


def test_the_points_of_a_series_are_saved_and_loaded_in_blocks_not_number_by_number():
    saved, loaded = Series(), Series()
    saved.add((step, step / 3) for step in range(20_000))
    saved.steps, saved.values = Block("q", saved.steps), Block("d", saved.values)
    state = saved.state_dict()
    assert (saved.steps.num_read, saved.values.num_read) == (0, 0)
    tracemalloc.start()
    try:
        loaded.load_state_dict(state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * 3 * 8, "two arrays; a list of numbers would take more than three of them"
    assert (list(loaded.steps), list(loaded.values)) == (list(saved.steps), list(saved.values))
    saved.steps[0] = 7
    assert state["steps"][0] == 0, "a state is a copy"
    loaded.add([(20_000, 1.0)])
    assert len(state["values"]) == 20_000


@pytest.mark.parametrize("steps", [torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64)])
def test_a_series_of_another_dtype_or_shape_is_refused(steps):
    state = Series().state_dict() | {"steps": steps}
    with pytest.raises(TypeError, match=r"in the place of a row of torch\.int64"):
        Series().load_state_dict(state)


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


def test_a_number_in_the_place_of_a_name_says_where_rows_are():
    with pytest.raises(KeyError, match=r"no metric 0; .*`history.epochs`"):
        filled()[0]


def test_a_single_epoch_is_written_without_an_s():
    history = History()
    history.set_epoch(0, {"loss": 1.0})
    assert repr(history) == "History(1 epoch; loss 1)"
