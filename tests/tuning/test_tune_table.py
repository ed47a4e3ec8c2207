"""The arithmetic of what is worth it, the table, and the lines to change."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.tuning import Tuning, TuningRow
from loopwright.tuning.tune import LEAST_GAIN, compared


def row(ratio: float, spread: float = 0.01, **settings: Any) -> TuningRow:
    return TuningRow(settings, 100.0 * ratio, ratio, spread)


def test_the_ratio_is_the_median_of_the_turns_and_one_slow_turn_does_not_count():
    found = compared({"threads": 2}, [100, 110, 10, 100, 100], [150, 165, 15, 30, 150])
    assert (found.ratio, found.spread, found.samples_per_second) == (1.5, 0.0, 150)
    assert found.is_worth_it


@pytest.mark.parametrize(
    ("speed", "is_worth_it"), [(100 * (1 + LEAST_GAIN) - 1, False), (104, True), (96, False)]
)
def test_a_small_difference_is_not_worth_a_line(speed, is_worth_it):
    assert compared({"threads": 2}, [100] * 3, [speed] * 3).is_worth_it == is_worth_it
    assert not compared({"threads": 2}, [100] * 3, [80, speed, 120]).is_worth_it


def test_the_table_and_what_follows_it():
    rows = (
        row(1.9, 0.05, batch_size=64),
        row(0.6, 0.01, workers=1),
        TuningRow({"precision": "bf16"}, note="RuntimeError: not implemented"),
        row(2.4, 0.05, threads=2, batch_size=64),
    )
    tuning = Tuning({"threads": 1}, 100.0, rows, {"compile": "there is nothing else to try"})
    assert str(tuning).splitlines() == [
        "tried                     samples/s           ratio  worth it",
        "current settings                100               1",
        "batch size 64                   190     1.90 ± 0.05  yes         changes the numbers",
        "1 worker                         60     0.60 ± 0.01  no",
        "bf16                              -               -              RuntimeError: not implemented",
        "2 threads, batch size 64          240     2.40 ± 0.05  yes         changes the numbers",
        "",
        "Not tried: compile, because there is nothing else to try.",
        "Worth changing:",
        "    torch.set_num_threads(2)",
        "    batch_size=64  # of the DataLoader, or of trainer.train",
        "The numbers change: compare the losses of a run before you adopt this.",
    ]
    assert repr(tuning) == "Tuning(4 tried, suggestion={'threads': 2, 'batch_size': 64})"
    assert tuning.to_dict()["rows"][1]["settings"] == {"workers": 1}


def test_where_nothing_is_faster_nothing_is_suggested():
    tuning = Tuning({"threads": 1}, 100.0, (row(0.5, threads=2),))
    assert (tuning.suggestion, tuning.lines) == ({}, [])
    assert "Nothing is worth changing." in str(tuning)
