"""The comparison of runs: settings that differ, results, the step at which runs part, curves with a
mark there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.sites import serving
from tests.dashboard.serving import Served
from tests.dashboard.small_runs import write_run

from .charts import lines, traces, wait_for_chart
from .conftest import MARKUP, Open
from .training import start


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs that are the same up to step 17, to the end, or not at all."""
    root = tmp_path_factory.mktemp("pairs") / "runs"
    write_run(root / "first", steps=60, width=32)
    write_run(root / "second", steps=60, width=64, offset=1e-9)
    write_run(root / "again", steps=40, width=32)
    write_run(root / MARKUP, steps=60, width=8, offset=0.5)
    with serving(root) as server:
        yield server


def address(*runs: str) -> str:
    return f"#/compare?runs={','.join(quote(quote(run, safe=''), safe='') for run in runs)}"


def keys(page: Page) -> list[str]:
    return page.locator(".compare-table tbody[aria-label=Config] th.key-column").all_inner_texts()


def card(page: Page, run: str) -> Locator:
    return page.locator(f'.parting[data-run="{run}"]')


def test_only_settings_that_differ_are_shown_until_all_are_asked_for(visit: Open, pairs: Served):
    page = visit(address("first", "second"), port=pairs.port)
    expect(page.locator(".compare-table thead a")).to_have_text(["first", "second"])
    assert keys(page) == ["model.width"]
    row = page.locator(".compare-table tr", has_text="model.width")
    expect(row.locator("td")).to_have_text(["32", "64"])
    expect(row.locator("td.is-other")).to_have_text("64")
    page.get_by_role("button", name="All settings").click()
    expect(page.locator(".compare-table .is-same")).to_have_count(2)
    assert keys(page) == ["model.width", "optimizer.lr", "trainer.max_epochs"]
    page.reload()
    expect(page.locator(".compare-table .is-same")).to_have_count(2)
    page.keyboard.press("k")
    expect(page.locator(".compare-table .is-same")).to_have_count(0)


def test_the_first_step_at_which_two_runs_part_is_said_with_its_values_and_marked(
    visit: Open, pairs: Served, picture: Callable[[Page, str], None]
):
    page = visit(address("first", "second"), port=pairs.port)
    expect(card(page, "second").locator(".parting-words")).to_have_text(
        "second is the same as first in 17 steps, bit for bit, and first differs at step 18."
    )
    cells = card(page, "second").locator("tbody tr").first.locator("th, td")
    expect(cells).to_have_text(["loss", str(1 / 18), str(1 / 18 + 1e-9), "1.00e\N{MINUS SIGN}9"])
    wait_for_chart(page, "loss")
    page.wait_for_function(
        """() => document.querySelector('[data-panel="loss"] .plot').data
            .some((trace) => trace.yaxis === "y2" && trace.mode === "lines")"""
    )
    (mark,) = (
        trace
        for trace in traces(page, "loss")
        if trace["axis"] == "y2" and trace["mode"] == "lines"
    )
    assert mark["x"][:2] == [18, 18]
    assert len({trace["colour"] for trace in lines(page, "loss")}) == 2
    page.set_viewport_size({"width": 1280, "height": 1060})
    picture(page, "ui-compare")


def test_runs_that_are_the_same_are_said_to_be_the_same(visit: Open, pairs: Served):
    page = visit(address("first", "again"), port=pairs.port)
    expect(card(page, "again")).to_contain_text(
        "is the same as first in all 40 steps that they have in common, bit for bit. "
        "One ends at step 40, the other at 60."
    )
    expect(page.locator(".compare-table")).to_contain_text("All 3 settings are the same.")


def test_the_run_to_compare_with_can_be_another(visit: Open, pairs: Served):
    page = visit(address("first", "second", "again"), port=pairs.port)
    expect(page.locator(".parting")).to_have_count(2)
    page.get_by_label("Run that the others are compared with").select_option("second")
    expect(page.locator(".compare-table thead a")).to_have_text(["second", "first", "again"])
    expect(card(page, "first")).to_contain_text("first is the same as second in 17 steps")
    expect(card(page, "again")).to_contain_text("first differs at step 18")


def test_results_show_the_best_run(visit: Open):
    page = visit("#/compare?runs=sweep/lr%253D0.1-width%253D16,sweep/lr%253D0.01-width%253D32")
    row = page.locator(".compare-table tr", has=page.locator("th", has_text="eval_loss"))
    values = [float(text) for text in row.locator("td").all_inner_texts()]
    expect(row.locator(".is-best")).to_have_text(f"{min(values):.4f}")
    # their folder is the same
    expect(page.locator(".compare-table thead a")).to_have_text(
        ["lr=0.1-width=16", "lr=0.01-width=32"]
    )


def test_fewer_than_two_runs_say_what_to_do(visit: Open, pairs: Served):
    page = visit(address("first"), port=pairs.port)
    expect(page.locator(".empty")).to_contain_text("One run is selected")
    page.get_by_role("link", name="Choose runs").click()
    page.locator("tr[data-id=second] input").check()
    page.keyboard.press("3")
    expect(page.locator(".parting")).to_have_count(1)


def test_a_run_that_goes_on_is_compared_as_it_goes(visit: Open, tmp_path: Path):
    start(tmp_path / "runs" / "one", num_epochs=3, wait=0).join()
    with serving(tmp_path / "runs") as server:
        page = visit("#/compare", port=server.port)
        expect(page.locator(".empty")).to_contain_text("One run is selected")
        start(tmp_path / "runs" / "two", num_epochs=4, wait=0.002).join()
        expect(page.locator(".parting")).to_contain_text(
            "in all 96 steps that they have in common, bit for bit"
        )
        wait_for_chart(page, "loss")


def test_a_damaged_run_is_compared_as_far_as_it_can_be_read(visit: Open):
    page = visit("#/compare?runs=long,damaged")
    expect(page.locator(".compare-table thead .pill")).to_have_text(["finished", "damaged"])
    expect(page.locator(".parting")).to_contain_text("not a database")
