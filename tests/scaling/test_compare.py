"""Strategies side by side: the best settings that fit, and where each strategy stops being
sensible."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loopwright.scaling import Cluster, Comparison, compare, measure, transformer
from tests.mistakes import raises

MODEL = transformer(24, 2048, sequence=2048)


@pytest.fixture(scope="module")
def table() -> Comparison:
    return compare(MODEL, devices=(512, 8, 64, 4096), batch=1024)


def test_what_is_shown_fits_wherever_some_settings_fit(table: Comparison) -> None:
    assert all(one.fits for (_, number), one in table.estimates.items() if number <= 512)
    one = table.estimates["ddp", 8]
    assert one.training.accumulate > 1  # 128 samples do not fit at once
    assert one.training.batch == 1024


def test_the_simplest_of_the_fastest_is_the_best(table: Comparison) -> None:
    best = table.best(8)
    assert best is table.estimates["ddp", 8]
    fastest = min(one.timing.step for (_, number), one in table.estimates.items() if number == 8)
    assert fastest <= best.timing.step <= 1.05 * fastest


def test_a_model_that_fits_nowhere_says_how_much_it_needs() -> None:
    found = compare(
        transformer(32, 4096, sequence=2048), devices=(1, 2), batch=8, strategies=("ddp",)
    )
    assert found.advice is None
    assert found.best(2) is None
    assert "GB of memory and can use 74 GB" in found.ranges[0].text
    assert found.ranges[0].text.startswith("DDP: on none of these numbers of devices: ")


def test_advice_is_for_the_most_devices_that_are_well_used(table: Comparison) -> None:
    advice = table.advice
    assert advice is not None
    assert advice.devices == 512
    assert advice.is_sensible
    assert advice.efficiency >= 0.5


def test_slow_links_stop_a_strategy_earlier() -> None:
    slow = Cluster("h100", between="ethernet10", adapters=1)
    fast, slowed = (
        compare(MODEL, devices=(8, 64), batch=256, cluster=c, strategies=["fsdp"])
        for c in ("h100", slow)
    )
    assert fast.range_of("fsdp").last == 64
    assert slowed.range_of("fsdp").last == 8
    assert "communication takes" in slowed.range_of("fsdp").after


def test_without_a_plan_layers_are_not_split() -> None:
    bare = measure(nn.Linear(4, 2), torch.ones(3, 4))
    strategies = {strategy for strategy, _ in compare(bare, devices=[16], batch=16).estimates}
    assert strategies == {"ddp", "fsdp", "hsdp"}
    with raises("no-plan", "tp"):
        compare(bare, devices=[8], batch=8, strategies=["tp"])


def test_nothing_to_compare_is_refused() -> None:
    with raises("unknown-strategy", "pp"):
        compare(MODEL, devices=[8], batch=8, strategies=["pp"])
    with raises("number", "devices=-8"):
        compare(MODEL, devices=[-8], batch=8)
