"""Light and dark, phone width, and what may go wrong: names, addresses, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.sites import serving
from tests.dashboard.serving import Served
from tests.demo_runs import make_demo_run

from .charts import wait_for_chart
from .conftest import MARKUP, Open, Visitor
from .training import start

GROUND = "() => getComputedStyle(document.documentElement).backgroundColor"
FOUR = "runs=sweep/lr%3D0.1-width%3D16,sweep/lr%3D0.01-width%3D16,sweep/lr%3D0.001-width%3D32,long"
SWEEP = "runs=" + ",".join(f"lr={lr}-width={width}" for lr in (0.003, 0.001) for width in (64, 128))
Picture = Callable[[Page, str], None]


def brightness(colour: str) -> float:
    numbers = [float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(numbers) / 3


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs as in the docs: a sweep over learning rates and widths, and one that is training now."""
    root = tmp_path_factory.mktemp("gallery") / "runs"
    for number, (lr, width) in enumerate(((0.003, 64), (0.001, 64), (0.003, 128), (0.001, 128))):
        options: dict[str, Any] = {
            "steps": 1500,
            "epochs": 12,
            "media": False,
            "resumed": number == 3,
        }
        config = {"optimizer.lr": lr, "model.width": width}
        make_demo_run(
            root / f"lr={lr}-width={width}",
            **options,
            seed=number,
            config=config,
            nan_spikes=number == 1,
        )
    training = start(root / "digits-live", num_epochs=40, wait=0.05)
    with serving(root) as server:
        yield server
    training.kill()
    training.join()


def test_the_table_of_runs_looks_as_in_the_docs(visit: Open, gallery: Served, picture: Picture):
    page = visit("#/runs", port=gallery.port)
    expect(page.locator("tbody tr[data-id]")).to_have_count(5)
    expect(page.locator('tr[data-id="digits-live"] .pill')).to_have_text("running")
    expect(page.locator('tr[data-id="digits-live"] .progress-text')).to_contain_text("left")
    expect(page.locator('tr[data-id="digits-live"] .best')).to_contain_text("eval_loss")
    page.set_viewport_size({"width": 1280, "height": 440})
    picture(page, "ui-runs")


def test_light_and_dark_follow_the_system_also_while_the_page_is_open(
    visit: Open, gallery: Served, picture: Picture
):
    page = visit(f"#/curves?{SWEEP}&smooth=3&fit=1", port=gallery.port)
    for name in ("loss", "accuracy", "lr", "train/grad_norm", "train/throughput"):
        wait_for_chart(page, name)
    assert brightness(page.evaluate(GROUND)) > 230
    ticks = """() => document.querySelector('[data-panel="loss"] .xtick text').style.fill"""
    light = page.evaluate(ticks)
    box = page.locator('[data-panel="accuracy"] .nsewdrag').first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 0.5 * box["height"])
    expect(page.locator(".cursor-values:not([hidden])")).to_contain_text("eval")
    picture(page, "ui-curves")
    page.emulate_media(color_scheme="dark")
    assert brightness(page.evaluate(GROUND)) < 40
    page.wait_for_function(f"(light) => ({ticks})() !== light", arg=light)
    assert brightness(page.evaluate(ticks)) > brightness(light)
    page.wait_for_function(
        """() => [...document.querySelectorAll(".plot")].every((plot) => plot._fullLayout.font.color === "#e7eaef")"""
    )
    picture(page, "ui-curves-dark")
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("where", ["runs", "curves", "compare", "sweep"])
def test_nothing_is_wider_than_a_phone(visit: Open, gallery: Served, picture: Picture, where: str):
    page = visit(f"#/{where}?{SWEEP}", port=gallery.port, phone=True)
    if where == "curves":
        wait_for_chart(page, "loss")
        picture(page, "ui-phone")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    for link in page.locator("nav a").all():
        link.scroll_into_view_if_needed()
        expect(link).to_be_in_viewport()


def test_a_tap_on_a_chart_reads_its_values(visit: Open):
    page = visit(f"#/curves?{FOUR}", phone=True)
    # the last one in sight: a chart that is drawn again closes what a tap has opened
    wait_for_chart(page, "lr")
    plot = wait_for_chart(page, "loss").locator(".panel-plot")
    tip = page.locator(".cursor-values:not([hidden])")
    for _ in range(10):  # a chart may be drawn again at any time, and one taps again
        plot.tap(position={"x": 180, "y": 90})
        with suppress(AssertionError):
            expect(tip).to_contain_text("long", timeout=2000)
            break
    expect(tip).to_contain_text("long")
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize(
    "run", ["../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%E0%A4%A", "nothing", MARKUP]
)
def test_any_address_is_a_page_and_no_error(visitor: Visitor, run: str):
    visitor.is_expected = lambda problem: "404" in problem
    page = visitor.open(f"#/run/{run}", wait="main > *")
    assert "root:" not in page.content()
    assert page.locator("main img").count() == 0


def test_settings_that_mean_nothing_are_no_error(visit: Open):
    page = visit(
        "#/curves?runs=long,nothing&x=step&zoom=a,b&smooth=99&logy=nothing&closed=%&wide=,&marks=unknown"
    )
    wait_for_chart(page, "loss")
    page = visit("#/runs?sort=-nothing&group=nothing&cols=nothing&hide=,&q=%22a")
    expect(page.locator("table")).to_be_visible()


def test_without_the_token_nothing_is_shown(visitor: Visitor, runs_folder: Path):
    visitor.is_expected = lambda problem: "401" in problem
    with serving(runs_folder, host="0.0.0.0") as guarded:
        page = visitor.open("?token=wrong", port=guarded.port, wait="body *")
        assert "token" in page.inner_text("body")
        assert "sweep" not in page.content()
        page.goto(f"http://127.0.0.1:{guarded.port}/?token={guarded.token}")
        expect(page.locator("tbody tr[data-id]")).to_have_count(10)
        assert guarded.token not in page.url
        page.keyboard.press("2")
        wait_for_chart(page, "loss")
