"""A report opened from the disk: the same pages without a server, and nothing loaded from
anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from loopwright.cli import main
from tests.dashboard.small_runs import write_run
from tests.demo_runs import make_demo_run

from .charts import drag, panel, wait_for_chart, x_range
from .conftest import MARKUP, Open
from .test_run_page import part, pictures, write_markup_run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about four runs, moved away from them, which are gone."""
    folder = tmp_path_factory.mktemp("report")
    root = folder / "runs"
    make_demo_run(root / "pix2pix", steps=5000, epochs=10, image_size=32, started=1.7e9)
    write_run(root / "first", steps=60, width=32)
    write_run(root / "second", steps=60, width=64, offset=1e-9)
    write_markup_run(root / MARKUP)
    made = folder / "report.html"
    assert (
        main(
            [
                "report",
                *(str(root / name) for name in ("first", "second", "pix2pix", MARKUP)),
                "-o",
                str(made),
            ]
        )
        == 0
    )
    root.rename(folder / "elsewhere")
    return made


def test_the_runs_are_in_the_file(visit: Open, report: Path):
    page = visit("", file=report)
    expect(page.locator("tbody tr[data-id]")).to_have_count(4)
    expect(page.locator(".top")).to_contain_text("report of")
    expect(page.locator("#connection")).to_have_count(0)


def test_the_page_of_a_run_works_without_a_server(visit: Open, report: Path):
    page = visit("#/run/pix2pix", file=report)
    expect(page.locator(".lead")).to_contain_text("Finished after 10 epochs")
    wait_for_chart(page, "loss")
    expect(panel(page, "loss").locator(".thin-note")).to_contain_text("1 of")
    newest = pictures(page, "samples/triplet")
    assert all(address.startswith("data:image/png;base64,") for address in newest)
    slider = page.get_by_role("slider")
    slider.press("Home")
    slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "step 1,000, epoch 1")
    assert not set(pictures(page, "samples/triplet")) & set(newest)
    expect(page.locator('[data-name="notes"]')).to_contain_text("After epoch 2")
    part(page, "histograms").scroll_into_view_if_needed()
    page.wait_for_function(
        "() => document.querySelector('[data-histogram] .plot')?.data?.[0]?.type === 'heatmap'"
    )
    expect(part(page, "log").locator(".log-line.warning")).to_contain_text("resumed")
    expect(part(page, "config")).to_contain_text("Adam")
    page.reload()
    expect(slider).to_have_attribute("aria-valuetext", "step 1,000, epoch 1")


def test_curves_zoom_in_a_report(visit: Open, report: Path):
    page = visit("#/curves?runs=pix2pix,first", file=report)
    wait_for_chart(page, "loss")
    drag(page, "loss", 0.2, 0.5)
    page.wait_for_function("""() => location.hash.includes("zoom=")""")
    page.wait_for_function(
        """() => {
            const { data, _fullLayout } = document.querySelector('[data-panel="loss"] .plot');
            const [first, last] = _fullLayout.xaxis.range;
            const line = data.find((trace) => trace.yaxis !== "y2" && !trace.fill).x.filter((x) => x !== null);
            return first > 500 && line.length > 100 && line.every((x) => x >= first - 20 && x <= last + 20);
        }"""
    )
    first, last = x_range(page, "loss")
    assert 800 < first < 1300
    assert 2200 < last < 2800


def test_runs_are_compared_in_a_report(visit: Open, report: Path):
    page = visit("#/compare?runs=first,second", file=report)
    expect(page.locator(".parting-words")).to_have_text(
        "second is the same as first in 17 steps, bit for bit, and first differs at step 18."
    )
    expect(page.locator(".compare-table tr", has_text="model.width").locator("td")).to_have_text(
        ["32", "64"]
    )
    wait_for_chart(page, "loss")


def test_a_sweep_is_in_a_report(visit: Open, report: Path):
    page = visit("#/sweep?runs=first,second&only=selection", file=report)
    page.wait_for_function("() => document.querySelector('.parallel .plot')?.data?.length === 2")
    expect(page.locator("tbody tr[data-id]")).to_have_count(2)


def test_a_report_of_one_run_opens_at_that_run(visit: Open, tmp_path: Path):
    write_run(tmp_path / "runs" / "only", steps=20)
    assert (
        main(["report", str(tmp_path / "runs" / "only"), "-o", str(tmp_path / "report.html")]) == 0
    )
    page = visit("", file=tmp_path / "report.html")
    expect(page.locator("h1")).to_have_text("only")
    wait_for_chart(page, "loss")


def test_the_file_names_no_address_to_load_from_and_no_folder_of_the_machine(report: Path):
    text = report.read_text()
    # plotly's own code holds addresses that it never asks
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert len(outside) < 100_000
    assert not re.search(r'(src|href)="(https?:|/)', outside)
    held = re.search(
        r'<script type="application/json" id="loopwright-report">(.*?)</script>', text, re.DOTALL
    )
    assert held is not None
    data = json.loads(held[1])
    assert {run["path"] for run in data["run"].values()} == {"first", "second", "pix2pix", MARKUP}
