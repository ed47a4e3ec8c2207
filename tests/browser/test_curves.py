"""Curves of the selected runs, in a real browser."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from loopwright.run import MetricsStore
from tests.browser.sites import serving
from tests.dashboard.small_runs import step_rows, write_run
from tests.demo_runs import make_demo_run

from .charts import HAS_LINES, drag, lines, panel, traces, wait_for_chart, wait_for_plot, x_range
from .conftest import Open

PAIR = "runs=sweep/lr%3D0.1-width%3D16,sweep/lr%3D0.01-width%3D16"


def test_training_and_evaluation_of_a_metric_share_a_panel_and_prefixes_a_group(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "loss")
    assert [line["dash"] for line in lines(page, "loss")] == ["solid", "6px,3px"]
    titles = page.locator(".group-head h2").all_inner_texts()
    assert titles == ["metrics", "layers", "train"]
    assert page.locator(".panel-group").nth(1).locator(".panel").count() == 2
    page.locator(".group-head").nth(1).click()
    expect(panel(page, "layers/0/norm")).to_have_count(0)
    page.reload()
    wait_for_chart(page, "loss")
    expect(panel(page, "layers/0/norm")).to_have_count(0)


def test_panels_are_found_by_name(visit: Open):
    page = visit("#/curves?runs=long")
    page.get_by_label("Search panels").fill("norm 1")
    expect(page.locator(".panel")).to_have_count(1)
    wait_for_chart(page, "layers/1/norm")
    page.get_by_label("Search panels").fill("nothing")
    expect(page.locator(".empty")).to_contain_text("No panel has this name")


def test_a_thinned_curve_says_so_and_keeps_its_spikes(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "loss")
    expect(panel(page, "loss").locator(".thin-note")).to_contain_text("points")
    bands = [trace for trace in traces(page, "loss") if trace["fill"] == "toself"]
    # single steps among 20,000
    assert max(y for band in bands for y in band["y"] if y is not None) == 40.0
    step = lines(page, "loss")[0]
    assert len(step["x"]) < 1000
    assert max(y for y in step["y"] if y is not None) < 40.0


def test_zoom_gets_every_point_and_is_the_same_in_all_charts(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "loss")
    wait_for_chart(page, "accuracy")
    drag(page, "loss", 0.5, 0.56)
    page.wait_for_function("() => location.hash.includes('zoom=')")
    wait_for_plot(page, "loss", "(plot) => plot._fullLayout.xaxis.range[0] > 9000")
    drag(page, "loss", 0.5, 0.6)
    expect(panel(page, "loss").locator(".thin-note")).to_be_hidden()
    wait_for_plot(page, "loss", "({ data: [{ x }] }) => x.length > 20 && x[1] - x[0] === 1")
    steps = [x for x in lines(page, "loss")[0]["x"] if x is not None]
    assert {after - before for before, after in pairwise(steps)} == {1}
    start, end = x_range(page, "loss")
    is_same = (
        f"({{ _fullLayout: {{ xaxis: {{ range: [a, b] }} }} }}) => Math.hypot(a - {start}, b "
        f"- {end}) < 0.01"
    )
    wait_for_plot(page, "accuracy", is_same)
    page.keyboard.press("0")
    expect(panel(page, "loss").locator(".thin-note")).to_be_visible()
    assert "zoom=" not in page.url


def test_nan_and_infinite_values_are_marked_and_the_line_is_broken(visit: Open):
    page = visit(f"#/curves?{PAIR}")
    wait_for_chart(page, "loss")
    marks = [
        symbol
        for trace in traces(page, "loss")
        if trace["axis"] == "y2" and isinstance(trace["symbol"], list)
        for symbol in trace["symbol"]
    ]
    assert marks.count("x-thin") == 6
    assert marks.count("triangle-up") == 2
    line = lines(page, "loss")[0]
    assert line["y"][line["x"].index(5)] is None


def test_steps_without_values_are_a_gap_and_no_line(visit: Open, tmp_path: Path):
    store = MetricsStore(
        write_run(tmp_path / "runs" / "gap", steps=40, media=False) / "metrics.sqlite"
    )
    store.add_steps(step_rows(300, 340))
    store.close()
    with serving(tmp_path / "runs") as server:
        page = visit("#/curves", port=server.port)
        wait_for_chart(page, "lr")
        (line,) = lines(page, "lr")
        assert line["x"][39:42] == [40, 300, 300]
        assert line["y"][39:42] == [0.1, None, 0.1]
        page.close()


def test_smoothing_shows_the_raw_curve_behind(visit: Open):
    page = visit(f"#/curves?{PAIR}")
    wait_for_chart(page, "accuracy")
    before = lines(page, "accuracy")
    page.get_by_label("Smoothing", exact=True).fill("3")
    wait_for_plot(
        page,
        "accuracy",
        "(plot) => plot.data.filter((trace) => trace.line?.width === 2).length === 2",
    )
    raw, smooth = lines(page, "accuracy")[:2]
    assert raw["y"] == before[0]["y"]
    assert raw["colour"].startswith("rgba")
    jumps = [sum(abs(b - a) for a, b in pairwise(line["y"])) for line in (raw, smooth)]
    assert jumps[1] < jumps[0] / 3
    assert "smooth=3" in page.url


def test_scales_can_be_logarithmic_for_one_panel_or_for_all(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "loss")
    panel(page, "loss").get_by_role("button", name="log").click()
    wait_for_plot(page, "loss", "(plot) => plot._fullLayout.yaxis.type === 'log'")
    wait_for_plot(page, "accuracy", "(plot) => plot._fullLayout.yaxis.type === 'linear'")
    page.keyboard.press("l")
    wait_for_plot(page, "accuracy", "(plot) => plot._fullLayout.yaxis.type === 'log'")


def test_x_is_any_clock_wall_time_or_another_metric(visit: Open):
    page = visit(f"#/curves?{PAIR}")
    wait_for_chart(page, "loss")
    ends = {"update": 240, "epoch": 4, "samples": 7680, "seconds": 2.4, "accuracy": 0.9977}
    for axis, last in ends.items():
        page.get_by_label("x axis").select_option(axis)
        near = "({ _fullLayout: { xaxis } }, last) => Math.abs(xaxis.range[1] - last) < 0.01 * last"
        wait_for_plot(page, "loss", near, last)
    page.get_by_label("x axis").select_option("wall")
    wait_for_plot(page, "loss", "(plot) => plot._fullLayout.xaxis.type === 'date'")


def test_one_cursor_in_all_charts_with_a_table_of_values(visit: Open):
    page = visit(f"#/curves?{PAIR}&values=1")
    for name in ("loss", "accuracy"):
        wait_for_chart(page, name)
    box = panel(page, "loss").locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(panel(page, "loss").locator(".cursor-line")).to_be_visible()
    expect(panel(page, "accuracy").locator(".cursor-line")).to_be_visible()
    tip = page.locator(".cursor-values:not([hidden])")
    expect(tip).to_have_count(1)
    expect(tip).to_contain_text("sweep/lr=0.1-width=16")
    expect(tip.locator("tr")).to_have_count(4)
    table = page.get_by_label("Values at the cursor")
    expect(table.locator("tbody tr")).to_have_count(2)
    for name in ("loss", "eval_loss", "accuracy", "lr"):
        expect(table.locator("thead")).to_contain_text(name)


def test_the_cursor_moves_by_keys(visit: Open):
    page = visit(f"#/curves?{PAIR}")
    wait_for_chart(page, "accuracy")
    panel(page, "accuracy").locator(".panel-plot").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".cursor-values:not([hidden]) .cursor-title")).to_have_text("step 3")
    page.keyboard.press("+")
    page.wait_for_function("() => location.hash.includes('zoom=')")
    wait_for_plot(page, "accuracy", "({ _fullLayout: { xaxis } }) => xaxis.range[1] < 130")
    assert 1 <= x_range(page, "accuracy")[0] < 3  # around the cursor, and nothing beyond the curves
    page.keyboard.press("0")
    page.wait_for_function("() => !location.hash.includes('zoom=')")
    page.keyboard.press("?")
    expect(page.locator("dialog kbd").filter(has_text="+")).to_have_count(1)


def test_events_are_marks_that_can_be_chosen(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "accuracy")
    wait_for_plot(page, "accuracy", "(plot) => plot.data.some((trace) => trace.yaxis === 'y2')")
    marks = [trace for trace in traces(page, "accuracy") if trace["axis"] == "y2"]
    resumed = next(trace for trace in marks if trace["mode"] == "lines")
    assert resumed["x"][0] == 10_000
    assert {"star", "line-ns"} <= {symbol for trace in marks for symbol in trace["symbol"] or []}
    page.get_by_role("button", name="Marks").click()
    page.get_by_label("resumed").uncheck()
    wait_for_plot(page, "accuracy", f"(plot) => !({HAS_LINES})(plot)")
    assert "marks=" in page.url


def test_one_run_that_was_killed_and_resumed_is_one_curve(visit: Open):
    page = visit("#/curves?runs=long&zoom=9900,10100")
    wait_for_chart(page, "accuracy")
    steps = [x for x in lines(page, "accuracy")[0]["x"] if x is not None]
    assert steps == sorted(set(steps))
    assert len(steps) == 201


def test_a_chart_is_exported_as_a_picture_and_its_data_as_csv(visit: Open):
    page = visit(f"#/curves?{PAIR}")
    chart = wait_for_chart(page, "loss")
    for name, start in (("Picture (PNG)", b"\x89PNG"), ("Drawing (SVG)", b"<svg")):
        chart.get_by_role("button", name="Export").click()
        with page.expect_download() as saved:
            chart.get_by_text(name).click()
        assert Path(saved.value.path()).read_bytes().startswith(start)
        page.keyboard.press("Escape")
    chart.get_by_role("button", name="Export").click()
    with page.expect_download() as saved:
        chart.get_by_text("All values (CSV)").click()
    rows = list(csv.DictReader(Path(saved.value.path()).read_text().splitlines()))
    assert {row["run"] for row in rows} == {"sweep/lr=0.1-width=16", "sweep/lr=0.01-width=16"}
    assert len([row for row in rows if row["name"] == "loss" and row["level"] == "step"]) == 480


def test_only_panels_in_view_are_drawn(visit: Open):
    page = visit("#/curves?runs=long", size=(700, 420))
    wait_for_chart(page, "loss")
    last = page.locator(".panel").last
    assert last.locator(".main-svg").count() == 0
    last.scroll_into_view_if_needed()
    expect(last.locator(".main-svg").first).to_be_visible()


def test_without_a_selection_the_page_says_what_to_do(visit: Open):
    page = visit("#/curves?runs=")
    expect(page.locator(".empty")).to_contain_text("No run is selected")
    words, button = (
        page.locator(".empty p").bounding_box(),
        page.get_by_role("link", name="Choose runs").bounding_box(),
    )
    assert words is not None
    assert button is not None
    assert 0 < button["y"] - words["y"] - words["height"] < 40  # beside the words that lead to it
    page.get_by_role("link", name="Choose runs").click()
    expect(page.locator("table")).to_be_visible()


def test_an_infinite_value_among_thinned_ones_is_an_arrow_and_nan_a_cross(visit: Open):
    page = visit("#/curves?runs=long")
    wait_for_chart(page, "loss")
    assert panel(page, "loss").locator(".thin-note").is_visible()
    (odd,) = [
        trace
        for trace in traces(page, "loss")
        if isinstance(trace["symbol"], list) and "x-thin" in trace["symbol"]
    ]
    arrows = [
        (x, y)
        for x, y, symbol in zip(odd["x"], odd["y"], odd["symbol"], strict=True)
        if symbol == "triangle-up"
    ]
    (arrow,) = arrows
    middle = x_range(page, "loss")[1] / 2 + 7  # where the demo run puts it
    assert arrow[0] == pytest.approx(middle, rel=0.02)
    assert arrow[1] > 0.9


def test_the_choices_of_x_are_the_metrics_of_the_selection(visit: Open, tmp_path: Path):
    make_demo_run(
        tmp_path / "runs" / "a",
        steps=20,
        epochs=1,
        names=("loss", "one"),
        media=False,
        resumed=False,
    )
    make_demo_run(
        tmp_path / "runs" / "b",
        steps=20,
        epochs=1,
        names=("loss", "two"),
        media=False,
        resumed=False,
    )
    with serving(tmp_path / "runs") as server:
        page = visit("#/curves?runs=a", port=server.port)
        options = page.get_by_label("x axis").locator("optgroup option")
        expect(options).to_have_text(["loss", "one"])
        page.evaluate("() => { location.hash = '#/curves?runs=b'; }")
        expect(options).to_have_text(["loss", "two"])
        page.close()


def test_numbers_at_the_axes_are_whole_and_apart_and_back_leaves_a_zoom(visit: Open):
    page = visit("#/curves?runs=long&logy=*")
    wait_for_plot(page, "accuracy", "(plot) => plot._fullLayout.yaxis.type === 'log'")
    rows = page.evaluate(
        """() => [...document.querySelectorAll('[data-panel="accuracy"] .ytick')].map((tick) => {
            const { top, bottom } = tick.getBoundingClientRect();
            return [top, bottom];
        }).sort((a, b) => a[0] - b[0])"""
    )
    assert len(rows) > 1
    assert all(above[1] <= below[0] for above, below in pairwise(rows)), rows
    page.evaluate("() => { location.hash = '#/curves?runs=long&zoom=10000,10006'; }")
    wait_for_plot(page, "lr", "({ _fullLayout: { xaxis } }) => xaxis.range[1] < 10010")
    numbers = page.locator('[data-panel="lr"] .xtick text')
    expect(numbers.get_by_text("10,002", exact=True)).to_be_visible()
    page.go_back()
    wait_for_plot(page, "lr", "({ _fullLayout: { xaxis } }) => xaxis.range[1] > 10010")


def test_a_panel_has_its_own_runs_marks_and_another_axis_forgets_the_cursor(visit: Open):
    page = visit(f"#/curves?{PAIR},long&values=1")
    places = {}
    for name in ("loss", "layers/0/norm"):
        wait_for_plot(page, name, HAS_LINES)
        marks = [
            trace
            for trace in traces(page, name)
            if trace["axis"] == "y2" and "x-thin" not in (trace["symbol"] or ())
        ]
        places[name] = {x for trace in marks for x in trace["x"] if x is not None}
    # checkpoints of the runs of the sweep, and of the long one
    assert {60, 120, 2500} <= places["loss"]
    assert min(places["layers/0/norm"]) == 2500
    panel(page, "loss").locator(".curve-chart").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".values-table h2")).to_contain_text("step ")
    page.keyboard.press("p")
    page.get_by_label("x axis").select_option("accuracy")
    expect(page.locator(".values-table h2")).to_have_text("Values at the cursor")
