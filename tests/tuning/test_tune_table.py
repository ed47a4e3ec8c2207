"""The arithmetic of what is worth it, and lines to change that are code and do what they say."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.tuning import Tuning, TuningRow
from loopwright.tuning.tune_table import LEAST_GAIN, Named, chosen, judged, lines_for


def row(ratio: float, spread: float = 0.01, verdict: Any = "faster", **settings: Any) -> TuningRow:
    return TuningRow(settings, 100.0 * ratio, ratio, spread, verdict)


def test_the_ratio_is_the_median_of_the_turns_and_one_slow_turn_does_not_count():
    judgement = judged({"threads": 2}, [(100, 150), (110, 165), (10, 15), (100, 30), (100, 150)])
    assert (judgement.ratio, judgement.spread, judgement.verdict) == (1.5, 0.0, "faster")
    assert judgement.samples_per_second == 150


def test_the_noise_of_the_present_settings_counts_where_the_tried_ones_had_luck():
    pairs = [(100, 110)] * 5
    assert judged({"threads": 2}, pairs).verdict == "faster"
    assert judged({"threads": 2}, pairs, noise=0.2).verdict == "no difference"


@pytest.mark.parametrize(
    ("speed", "verdict"),
    [
        (100 * (1 + LEAST_GAIN) - 1, "no difference"),
        (104, "faster"),
        (96, "slower"),
        (98, "no difference"),
    ],
)
def test_a_small_difference_is_not_worth_a_line(speed, verdict):
    assert judged({"threads": 2}, [(100, speed)] * 3).verdict == verdict


def test_the_fastest_is_chosen_or_one_as_fast_that_changes_less():
    fused, both = row(1.30, fused=True), row(1.31, fused=True, threads=2)
    assert chosen([fused, both]) is fused
    assert chosen([fused, row(1.32, precision="bf16")]) is fused
    faster = row(1.6, precision="bf16")
    assert chosen([fused, faster]) is faster
    assert chosen([row(1.9, batch_size=64), row(1.91, batch_size=128)]).settings == {
        "batch_size": 64
    }
    assert chosen([row(0.5, verdict="slower", threads=2), TuningRow({"threads": 4})]) is None


# The lines

CASES: list[tuple[dict[str, Any], Named, list[str]]] = [
    ({"threads": 2}, Named(), ["torch.set_num_threads(2)"]),
    ({"channels_last": True}, Named(), ["model.to(memory_format=torch.channels_last)"]),
    ({"fused": True}, Named(), ["optimizer = torch.optim.Adam(..., fused=True)"]),
    (
        {"compile": "blocks", "precision": "bf16"},
        Named(),
        ['trainer = Trainer(..., compile="blocks", precision="bf16")'],
    ),
    ({"compile": None}, Named(), ["trainer = Trainer(..., compile=None)"]),
    ({"batch_size": 16}, Named(), ["trainer.train(..., batch_size=16)"]),
    (
        {"workers": 1},
        Named(batch_size=8),
        ["loader = DataLoader(data, 8, shuffle=True, num_workers=1)", "trainer.train(loader, ...)"],
    ),
    (
        {"workers": 1, "batch_size": 16},
        Named(is_loader=True, batch_size=8),
        ["loader = DataLoader(..., batch_size=16, num_workers=1)"],
    ),
]


@pytest.mark.parametrize(("settings", "named", "lines"), CASES)
def test_the_lines_are_these(settings, named, lines):
    assert lines_for(settings, named) == lines


def test_the_table_and_what_follows_it():
    rows = (
        row(1.9, 0.05, batch_size=64),
        row(1.3, 0.04, threads=2),
        row(0.6, 0.01, "slower", workers=1),
        TuningRow({"precision": "bf16"}, note="RuntimeError: not implemented"),
        row(2.4, 0.05, threads=2, batch_size=64),
    )
    present = {
        "workers": 0,
        "batch_size": 32,
        "compile": None,
        "precision": "fp32",
        "threads": 1,
        "fused": False,
    }
    tuning = Tuning(present, 100.0, rows, {"pin_memory": "there is no GPU to copy batches to"})
    assert str(tuning).splitlines() == [
        "tried              samples/s        ratio  worth it",
        "current settings         100            1",
        "batch size 64            190  1.90 ± 0.05  yes",
        "2 threads                130  1.30 ± 0.04  yes",
        "1 worker                  60  0.60 ± 0.01  no, slower",
        "bf16                       -            -  -           RuntimeError: not implemented",
        "these 2 together:        240  2.40 ± 0.05  yes         2 threads, batch size 64",
        "",
        "Current settings: 0 workers, batch size 32, not compiled, fp32, 1 thread.",
        "Not tried: pinned memory, because there is no GPU to copy batches to.",
        "Worth changing, 1.30 ± 0.04 times as fast; the numbers stay the same, up to rounding:",
        "    torch.set_num_threads(2)",
        "Faster still, 2.40 ± 0.05 times as fast, but the numbers change:",
        "    torch.set_num_threads(2)",
        "    trainer.train(..., batch_size=64)",
        "Larger batches may need another learning rate.",
        "Compare the losses of a run before you adopt this.",
    ]
    assert repr(tuning) == "Tuning(5 tried, suggestion={'threads': 2, 'batch_size': 64})"
    assert tuning.to_dict()["rows"][1]["settings"] == {"threads": 2}
