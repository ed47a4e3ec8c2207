"""The table of runs, in a real browser."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.sites import serving
from tests.demo_runs import make_demo_run

from .conftest import Open


def shown(page: Page) -> list[str]:
    """The runs in the order of the table."""
    return page.eval_on_selector_all(
        "tbody tr[data-id]", "(rows) => rows.map((row) => row.dataset.id)"
    )


def cell(page: Page, run: str, column: str) -> str:
    """What a run's cell under the head of a column says."""
    heads = page.eval_on_selector_all(
        "thead th", "(heads) => heads.map((head) => head.querySelector('.sort')?.dataset.key)"
    )
    return page.locator(f'tr[data-id="{run}"] > td').nth(heads.index(column)).inner_text()


def selected(page: Page) -> list[str]:
    rows = page.locator('tbody tr[aria-selected="true"]')
    return rows.evaluate_all("(rows) => rows.map((row) => row.dataset.id)")


def test_a_row_says_state_progress_best_metric_age_and_configuration(visit: Open):
    page = visit("#/runs")
    assert cell(page, "failed", "state") == "failed"
    assert cell(page, "long", "progress") == "100 %"
    value, name = cell(page, "long", "best").split()
    assert (name, 0.2 < float(value) < 0.4) == ("eval_loss", True)
    assert cell(page, "failed", "optimizer.lr") == "1"
    assert cell(page, "long", "started").endswith(("ago", "now"))
    expect(page.locator(".page-head")).to_contain_text("10 runs")


def test_equal_columns_are_hidden_until_they_are_asked_for(visit: Open):
    page = visit("#/runs")
    heads = page.locator("thead .sort")
    assert "optimizer.name" not in heads.evaluate_all(
        "(all) => all.map((head) => head.dataset.key)"
    )
    page.get_by_role("button", name="equal columns hidden").click()
    expect(page.locator('thead [data-key="optimizer.name"]')).to_be_visible()
    assert cell(page, "long", "optimizer.name") == "Adam"
    assert "equal=shown" in page.url


def test_columns_are_chosen_in_a_menu_and_kept_in_the_address(visit: Open):
    page = visit("#/runs")
    page.get_by_role("button", name="Columns", exact=True).click()
    page.get_by_label("eval_accuracy (last value)").check()
    page.get_by_label("model.width", exact=True).uncheck()
    expect(page.locator('thead [data-key="last.eval_accuracy"]')).to_be_visible()
    expect(page.locator('thead [data-key="model.width"]')).to_have_count(0)
    page.reload()
    expect(page.locator('thead [data-key="last.eval_accuracy"]')).to_be_visible()
    expect(page.locator('thead [data-key="model.width"]')).to_have_count(0)


def test_rows_are_sorted_by_any_column_in_both_directions(visit: Open):
    page = visit("#/runs?q=tags%3Dsweep")
    page.locator('thead [data-key="optimizer.lr"]').click()
    expect(page.locator('th[aria-sort="ascending"]')).to_contain_text("lr")
    assert [run.split("-")[0] for run in shown(page)] == [
        f"sweep/lr={lr}" for lr in (0.001, 0.001, 0.01, 0.01, 0.1, 0.1)
    ]
    page.locator('thead [data-key="optimizer.lr"]').click()
    expect(page.locator('th[aria-sort="descending"]')).to_contain_text("lr")
    assert shown(page)[0].startswith("sweep/lr=0.1")


def test_words_and_conditions_filter_rows(visit: Open):
    page = visit("#/runs")
    field = page.get_by_label("Filter runs")
    for text, count in (
        ("sweep", 6),
        ("lr>0.05", 3),
        ("lr<=0.01 width=32", 5),
        ("state=failed", 1),
        ("-sweep", 4),
        ("adam lr=1", 1),
    ):
        field.fill(text)
        expect(page.locator("tbody tr[data-id]"), text).to_have_count(count)
    field.fill("weidth=3")
    expect(page.get_by_role("alert")).to_have_text(
        "There is no column “weidth”: is it model.width?"
    )
    expect(page.locator("tbody tr[data-id]")).to_have_count(10)
    field.fill("nothing-like-it")
    expect(page.locator(".page-head")).to_contain_text("0 of 10 runs: nothing matches the filter")


def test_runs_are_grouped_by_a_column(visit: Open):
    page = visit("#/runs?q=sweep")
    page.get_by_label("Group by").select_option("model.width")
    groups = page.locator("tr.group")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("width 16")
    groups.first.get_by_role("checkbox").check()
    assert {run.split("-")[-1] for run in selected(page) if run.startswith("sweep")} >= {"width=16"}


def test_one_selection_for_all_pages_that_survives_a_reload(visit: Open):
    page = visit("#/runs?runs=")
    rows = page.locator("tbody tr[data-id]")
    rows.nth(1).locator(".check").click()
    rows.nth(3).locator(".check").click(modifiers=["Shift"])
    chosen = shown(page)[1:4]
    assert selected(page) == chosen
    colours = page.locator("tr.is-selected .swatch").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(colours)) == 3
    page.get_by_role("navigation").get_by_text("Curves").click()
    expect(page.locator(".chip")).to_have_count(3)
    page.reload()
    expect(page.locator(".chip")).to_have_count(3)
    again = page.locator(".chip .swatch").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert sorted(again) == sorted(colours)
    page.locator(".chip").first.get_by_role("button").click()
    expect(page.locator(".chip")).to_have_count(2)
    assert sorted(
        page.locator(".chip .swatch").evaluate_all(
            "(all) => all.map((one) => getComputedStyle(one).backgroundColor)"
        )
    ) == sorted(again[1:])
    page.get_by_role("navigation").get_by_text("Runs").click()
    expect(page.locator("tr.is-selected")).to_have_count(2)


def test_the_keyboard_alone_filters_selects_and_opens(visit: Open):
    page = visit("#/runs?runs=")
    page.keyboard.press("/")
    page.keyboard.type("sweep")
    expect(page.locator("tbody tr[data-id]")).to_have_count(6)
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    assert selected(page) == shown(page)[:3]
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("select several")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("tbody tr[tabindex='0']").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.startsWith('#/run/')")
    page.keyboard.press("2")
    expect(page.locator(".chip")).to_have_count(3)


def test_an_empty_folder_says_what_to_do_and_shows_the_first_run_by_itself(
    visit: Open, tmp_path: Path
):
    with serving(tmp_path / "runs") as empty:
        page = visit(port=empty.port)
        expect(page.locator(".empty")).to_contain_text("There is no folder")
        expect(page.locator(".empty .command")).to_contain_text(f'run_dir="{tmp_path}/runs/first"')
        make_demo_run(tmp_path / "runs" / "first", steps=20, epochs=2, media=False, resumed=False)
        expect(page.locator('tr[data-id="first"]')).to_be_visible()
        page.close()


def test_the_table_is_saved_as_it_is_shown(visit: Open):
    page = visit("#/runs?q=sweep&sort=optimizer.lr")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the table as CSV").click()
    rows = list(csv.DictReader(Path(saved.value.path()).read_text().splitlines()))
    assert [row["run"] for row in rows] == shown(page)
    assert [float(row["optimizer.lr"]) for row in rows] == [0.001, 0.001, 0.01, 0.01, 0.1, 0.1]


def test_two_hundred_runs_are_sorted_and_selected_and_twenty_of_them_compared(
    visit: Open, tmp_path: Path
):
    first = make_demo_run(
        tmp_path / "runs" / "run-000", steps=2, epochs=1, media=False, resumed=False
    )
    config = (first / "config.yaml").read_text()
    for number in range(1, 200):
        copy = shutil.copytree(first, tmp_path / "runs" / f"run-{number:03}")
        copy.joinpath("config.yaml").write_text(config.replace("lr: 0.001", f"lr: {number / 1000}"))
    with serving(tmp_path / "runs") as many:
        page = visit("#/runs", port=many.port)
        expect(page.locator("tbody tr[data-id]")).to_have_count(200)
        page.locator('thead [data-key="optimizer.lr"]').click()
        page.locator('thead [data-key="optimizer.lr"]').click()
        expect(page.locator("tbody tr[data-id]").first).to_have_attribute("data-id", "run-199")
        page.keyboard.press("a")
        expect(page.locator(".selected-count")).to_have_text("200 runs selected")
        page.get_by_role("link", name="Compare").last.click()
        expect(page.locator(".page-head")).to_contain_text("the first 20 of 200 selected runs")
        expect(page.locator(".parting")).to_have_count(19)
        page.close()
