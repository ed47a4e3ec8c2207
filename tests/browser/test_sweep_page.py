"""Sweeps: the metric against each parameter, all parameters on parallel axes, and the table in the
metric's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.sites import serving
from tests.dashboard.small_runs import write_run
from tests.demo_runs import make_demo_run
from tests.waiting import wait_for

from .conftest import MARKUP, Open

SCATTER = "(key) => document.querySelector(`[data-parameter='${key}'] .plot`)"
PARALLEL = "document.querySelector('.parallel .plot')"


def scatter(page: Page, key: str) -> dict[str, Any]:
    """Points and axes of the chart of a parameter."""
    page.wait_for_function(f"(key) => ({SCATTER})(key)?.data?.length === 1", arg=key)
    return page.evaluate(
        f"""(key) => {{ const graph = ({SCATTER})(key); const [points] = graph.data;
            const scale = graph._fullLayout.xaxis.type;
            return {{x: [...points.x], y: [...points.y], runs: [...points.customdata], scale,
                ticks: [...graph.querySelectorAll(".xtick text")].map((tick) => tick.textContent)}}; }}""",
        key,
    )


def wait_for_lines(page: Page, number: int) -> None:
    page.wait_for_function(f"(number) => {PARALLEL}?.data?.length === number", arg=number)


def pointed_at_end(page: Page) -> str | None:
    """Move the pointer to the best run's end on the last axis; the run whose line the chart then
    finds there."""
    x, y = page.evaluate(
        f"""() => {{ const graph = {PARALLEL}; const {{xaxis, yaxis}} = graph._fullLayout;
            const box = graph.getBoundingClientRect();
            return [box.x + xaxis._offset + xaxis.l2p(2), box.y + yaxis._offset + yaxis.l2p(0)]; }}"""
    )
    page.mouse.move(x - 2, y - 2)
    page.mouse.move(x, y)
    found: str | None = page.evaluate(f"() => {PARALLEL}._hoverdata?.[0]?.data.meta ?? null")
    return found


def rows(page: Page) -> list[str]:
    return [row.get_attribute("data-id") or "" for row in page.locator("tbody tr[data-id]").all()]


def test_the_metric_is_drawn_against_each_parameter_on_a_scale_that_fits(
    visit: Open, picture: Callable[[Page, str], None]
):
    page = visit("#/sweep")
    lr = scatter(page, "optimizer.lr")
    assert sorted(lr["x"]) == [0.001, 0.001, 0.01, 0.01, 0.1, 0.1]
    assert lr["scale"] == "log"
    assert lr["ticks"] == ["0.001", "0.01", "0.1"]
    width = scatter(page, "model.width")
    assert (sorted(set(width["x"])), width["scale"]) == ([16, 32], "linear")
    summaries = page.evaluate("() => fetch('/api/runs').then((answer) => answer.json())")["runs"]
    best = {run["id"]: run["metric"]["value"] for run in summaries if run["metric"]}
    assert dict(zip(lr["runs"], lr["y"], strict=True)) == {run: best[run] for run in lr["runs"]}
    wait_for_lines(page, 6)
    picture(page, "ui-sweep")


def test_all_parameters_are_on_parallel_axes_and_a_click_selects_the_run(visit: Open):
    page = visit("#/sweep")
    wait_for_lines(page, 6)
    titles = page.evaluate(
        f"() => {PARALLEL}._fullLayout.annotations.filter((one) => "
        "one.text.startsWith('<b>')).map((one) => one.text)"
    )
    assert titles == ["<b>width</b>", "<b>lr</b>", "<b>eval_loss</b>"]
    heights = page.evaluate(
        f"() => Object.fromEntries({PARALLEL}.data.map((line) => [line.meta, [...line.y]]))"
    )
    assert heights["sweep/lr=0.1-width=16"][:2] == [0, 1]
    assert heights["sweep/lr=0.001-width=32"][:2] == [1, 0]
    lowest, highest = (min(heights, key=lambda run: sign * heights[run][2]) for sign in (1, -1))
    assert (heights[lowest][2], heights[highest][2]) == (0, 1)
    # the best run is drawn above the others
    assert page.evaluate(f"() => {PARALLEL}.data.at(-1).meta") == lowest
    selected = page.locator(".selected-count")
    before = selected.inner_text()
    wait_for(lambda: pointed_at_end(page) == lowest)  # charts above it that are still drawn move it
    page.mouse.down()
    page.mouse.up()
    expect(selected).not_to_have_text(before)
    box = page.locator(f'tr[data-id="{lowest}"] input')
    was_selected = lowest in page.evaluate(
        "() => decodeURIComponent(decodeURIComponent(location.hash))"
    )
    expect(box).to_be_checked(checked=was_selected)


def test_the_table_is_in_the_order_of_the_metric_and_goes_by_keyboard(visit: Open):
    page = visit("#/sweep?runs=long")
    wait_for_lines(page, 6)
    cells = page.locator("tbody tr[data-id] td.number:nth-child(3)").all_inner_texts()
    values = [float(text) for text in cells]
    assert len(values) == 6
    assert values == sorted(values)
    page.get_by_label("Metric", exact=True).select_option("eval_accuracy")
    expect(page.locator("th[aria-sort]")).to_contain_text("eval_accuracy")
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    page.locator("[data-key='optimizer.lr']").click()
    expect(page.locator("th[aria-sort]")).to_contain_text("lr")
    assert [row.rpartition("/")[2].split("-")[0] for row in rows(page)] == ["lr=0.001"] * 2 + [
        "lr=0.01"
    ] * 2 + ["lr=0.1"] * 2
    page.locator("h1").click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    first, second = rows(page)[:2]
    assert page.evaluate("() => document.activeElement.dataset.id") == second
    page.keyboard.press("Space")
    expect(page.locator(f'tr[data-id="{second}"] input')).to_be_checked()
    expect(page.locator(f'tr[data-id="{first}"] input')).not_to_be_checked()
    assert "metric=eval_accuracy" in page.url
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(second.rpartition("/")[2])


def test_selected_runs_are_a_sweep_too(visit: Open):
    page = visit("#/sweep?runs=sweep/lr%253D0.1-width%253D16,sweep/lr%253D0.1-width%253D32,long")
    page.get_by_label("Runs", exact=True).select_option(label="selected runs (3)")
    wait_for_lines(page, 3)
    expect(page.locator("tbody tr[data-id]")).to_have_count(3)
    assert "only=selection" in page.url
    page.reload()
    wait_for_lines(page, 3)


def test_runs_with_the_same_settings_say_what_a_sweep_needs(visit: Open, tmp_path: Path):
    root = tmp_path / "runs"
    with serving(root) as server:
        page = visit("#/sweep", port=server.port)
        expect(page.locator(".empty")).to_contain_text("No runs yet")
        write_run(root / "one", steps=4)
        expect(page.locator(".empty")).to_contain_text("A sweep needs two or more runs")
        write_run(root / "two", steps=4)
        expect(page.locator(".empty")).to_contain_text("These runs have the same settings")
        write_run(root / "three", steps=4, width=7)
        wait_for_lines(page, 3)
        expect(page.locator(".empty")).to_have_count(0)


def test_words_and_missing_values_have_their_places(visit: Open, tmp_path: Path):
    root = tmp_path / "runs"
    options: dict[str, Any] = {
        "steps": 4,
        "epochs": 1,
        "media": False,
        "resumed": False,
        "names": ("loss",),
    }
    for number, name in enumerate(["relu", "tanh", MARKUP]):
        make_demo_run(
            root / f"{number}-{MARKUP}",
            **options,
            seed=number,
            config={"data.act": name, f"model.{MARKUP}": number},
        )
    make_demo_run(root / "without", **options, config={"data.act": "relu"})
    with serving(root) as server:
        page = visit("#/sweep", port=server.port)
        act = scatter(page, "data.act")
        assert act["scale"] == "category"
        assert act["ticks"] == ["relu", "tanh", f"{MARKUP[:17]}…"]
        marked = scatter(page, f"model.{MARKUP}")
        # the run that does not have it is in none of its places
        assert sorted(marked["x"]) == [
            0,
            1,
            2,
        ]
        wait_for_lines(page, 4)
        assert page.locator("main img").count() == 0
        expect(page.locator(".parallel .annotation-text", has_text="not set").first).to_be_visible()


def test_a_folder_that_is_not_there_says_so(visit: Open):
    page = visit("#/sweep?folder=../../etc")
    expect(page.locator(".empty")).to_be_visible()
