"""A page that is open while a real training runs, is killed, and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.sites import serving, serving_to_anyone
from tests.dashboard.serving import Served

from .charts import HAS_LINES, lines, panel, traces, wait_for_chart, wait_for_plot, x_range
from .conftest import Open
from .training import start

STEPS = 32  # of an epoch
POINTS = """(plot, least) => {
    const lines = plot.data.filter((trace) => trace.line?.dash === "solid");
    return lines.some((line) => line.x.filter((x) => x !== null).length >= least);
}"""


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "runs") as server:
        yield server


def test_curves_grow_while_a_training_runs_and_go_on_after_a_kill(
    visit: Open, growing: Served, tmp_path: Path
):
    page = visit("#/curves", port=growing.port)
    expect(page.locator(".empty")).to_contain_text("No runs yet")
    loads = page.evaluate("() => performance.getEntriesByType('navigation').length")
    training = start(tmp_path / "runs" / "first", num_epochs=6, halt=3 * STEPS + 5)
    try:
        expect(page.locator(".chip")).to_contain_text("first")
        wait_for_plot(page, "loss", POINTS, 10)
        wait_for_plot(page, "loss", POINTS, 3 * STEPS)
        expect(panel(page, "loss").locator(".line-keys")).to_contain_text("eval")
    finally:
        training.kill()
        training.join()
    assert training.exitcode == -signal.SIGKILL
    expect(page.locator(".chip .pill")).to_have_text("crashed")
    training = start(tmp_path / "runs" / "first", num_epochs=6)
    wait_for_plot(page, "loss", POINTS, 6 * STEPS)
    training.join()
    expect(page.locator(".chip .pill")).to_have_count(0)
    steps = [x for x in lines(page, "loss")[0]["x"] if x is not None]
    assert steps == list(range(1, 6 * STEPS + 1))
    wait_for_plot(page, "loss", HAS_LINES)
    marks = [
        trace
        for trace in traces(page, "loss")
        if trace["axis"] == "y2" and trace["mode"] == "lines"
    ]
    assert [x for trace in marks for x in trace["x"] if x is not None] == [3 * STEPS] * 2
    assert page.evaluate("() => performance.getEntriesByType('navigation').length") == loads


def test_a_hidden_tab_asks_for_nothing_and_catches_up(visit: Open, growing: Served, tmp_path: Path):
    training = start(tmp_path / "runs" / "first", num_epochs=2)
    training.join()
    page = visit("#/curves", port=growing.port)
    wait_for_chart(page, "loss")
    wait_for_plot(page, "loss", POINTS, 2 * STEPS)
    hide = """(is) => {
        Object.defineProperty(document, "hidden", { value: is, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    start(tmp_path / "runs" / "first", num_epochs=4).join()
    start(tmp_path / "runs" / "second", num_epochs=1).join()
    assert requests == []
    assert len(lines(page, "loss")[0]["x"]) == 2 * STEPS
    page.evaluate(hide, False)
    wait_for_plot(page, "loss", POINTS, 4 * STEPS)
    expect(page.locator(".chip")).to_have_count(2)


def test_a_zoomed_chart_stays_where_it_is_while_values_come(
    visit: Open, growing: Served, tmp_path: Path
):
    training = start(tmp_path / "runs" / "first", num_epochs=100_000)
    try:
        page = visit("#/curves?zoom=3,20", port=growing.port)
        wait_for_chart(page, "loss")
        count = page.evaluate(
            "async () => (await (await fetch('/api/runs')).json()).runs[0].progress.step"
        )
        page.wait_for_function(
            "(count) => fetch('/api/runs').then((r) => r.json()).then((a) => "
            "a.runs[0].progress.step > count + 20)",
            arg=count,
        )
        assert x_range(page, "loss") == pytest.approx([3, 20])
        assert [x for x in lines(page, "loss")[0]["x"] if x is not None] == list(range(3, 21))
        page.keyboard.press("0")
        wait_for_plot(page, "loss", POINTS, 30)
    finally:
        training.kill()
        training.join()


def test_a_server_that_is_gone_is_said_and_found_again(visitor, runs_folder: Path):
    visitor.is_expected = lambda problem: (
        "ERR_CONNECTION_REFUSED" in problem or "ERR_INCOMPLETE_CHUNKED" in problem
    )
    with serving_to_anyone(runs_folder) as server:
        page = visitor.open("#/runs", port=server.port)
        expect(page.locator("table")).to_be_visible()
    expect(page.locator("#banner")).to_contain_text("is loopwright ui still running")
    expect(page.locator("table")).to_be_visible()
