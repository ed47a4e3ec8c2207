"""The page of one run: words, images at a step, heat maps, log, traceback, checkpoints; live, and
by keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from loopwright.metrics.media import Histogram, Images, Media, Table
from loopwright.profiling.report import Report
from loopwright.run import MetricsStore, RunManifest
from tests.browser.sites import serving
from tests.dashboard.serving import Served
from tests.demo_runs import demo_image, make_demo_run

from .charts import traces, wait_for_chart
from .conftest import MARKUP, Open, Visitor
from .painting import STEPS, start_painting
from .training import start

VERDICT = "62 % of the time is waiting for data: try num_workers=2."
MILLISECOND = 1_000_000  # nanoseconds


def profile(callback: str) -> str:
    """The file that Profile() writes, of a run that waits for data and has a slow callback."""
    parts = {
        "data": 7700,
        "forward": 1600,
        "backward": 1100,
        f"callbacks/{callback}/on_update_end": 1990,
    }
    nanoseconds = {part: spent * MILLISECOND for part, spent in parts.items()} | {
        "callbacks/Tiny/on_log": 10 * MILLISECOND
    }
    report = Report(
        nanoseconds,
        num_steps=1000,
        num_workers=0,
        num_cores=2,
        memory={"process": 512 * MILLISECOND},
    )
    return json.dumps(report.as_dict())


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs with all that a run can have, and runs that have nothing, or are damaged, or call
    themselves markup."""
    root = tmp_path_factory.mktemp("rich") / "runs"
    names = ("loss", "accuracy", "lr", "train/samples_per_second", "memory/process")
    pix2pix = make_demo_run(
        root / "pix2pix", steps=1000, epochs=10, names=names, image_size=96, tags=["facades"]
    )
    pix2pix.joinpath("profile.json").write_text(profile("EMA"))
    make_demo_run(root / "plain", steps=20, epochs=1, media=False, resumed=False, names=("loss",))
    RunManifest.collect(device="cpu", seed=0).changed(state="stopped").write(
        _made(root / "bare") / "run.json"
    )
    damaged = make_demo_run(root / "damaged", steps=20, epochs=1, media=False)
    damaged.joinpath("metrics.sqlite").write_bytes(b"this is no database " * 200)
    write_markup_run(root / MARKUP)
    with serving(root) as server:
        yield server


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def write_markup_run(folder: Path) -> None:
    """A run in which every name and every text is markup."""
    make_demo_run(
        folder,
        steps=20,
        epochs=2,
        media=False,
        names=("loss", MARKUP),
        tags=[MARKUP],
        config={f"model.{MARKUP}": MARKUP},
    )
    store = MetricsStore(folder / "metrics.sqlite")
    picture = demo_image(16, 1, 1)
    contents: dict[str, Any] = {
        f"images {MARKUP}": Images((picture,), (MARKUP,)), f"histogram {MARKUP}": Histogram((0.0, 1.0), (3,)),
        f"text {MARKUP}": MARKUP, f"table {MARKUP}": Table((MARKUP,), ((MARKUP,),)),
    }  # fmt: skip
    for step in (10, 20):
        for name, content in contents.items():
            store.add_media(Media(name, content, step, step, 0, step, 1.0, 1.7e9 + step))
    store.add_log_line("ERROR", f"{MARKUP} in the log")
    store.add_event(
        "failed",
        MARKUP,
        detail={
            "traceback": f"Traceback (most recent call last):\n  {MARKUP}\nRuntimeError: {MARKUP}"
        },
    )
    store.close()
    folder.joinpath("profile.json").write_text(profile(MARKUP))
    manifest = json.loads(folder.joinpath("run.json").read_text())
    folder.joinpath("run.json").write_text(
        json.dumps(manifest | {"state": "failed", "reason": MARKUP})
    )


def part(page: Page, name: str) -> Locator:
    return page.locator(f"#part-{name}")


def pictures(page: Page, name: str) -> list[str]:
    """The addresses of the images of a name, once all of them are loaded."""
    images = page.locator(f'[data-name="{name}"] img')
    expect(images.first).to_be_visible()
    page.wait_for_function(
        """(name) => [...document.querySelectorAll(`[data-name='${name}'] img`)]
            .every((one) => one.complete && one.naturalWidth > 0)""",
        arg=name,
    )
    return [str(image.get_attribute("src")) for image in images.all()]


# What it says


def test_the_head_says_in_words_how_a_run_went(
    visit: Open, rich: Served, picture: Callable[[Page, str], None]
):
    page = visit("#/run/pix2pix", port=rich.port)
    expect(page.locator("h1")).to_have_text("pix2pix")
    expect(page.locator(".lead")).to_contain_text(
        "Finished after 10 epochs (1,000 updates) in 10 s on cpu. Best eval_loss"
    )
    expect(page.locator(".lead")).to_contain_text("Resumed once.")
    expect(page.locator(".run-title .pill")).to_have_text("finished")
    expect(page.locator(".run-title .tag")).to_have_text("facades")
    facts = {
        one.locator("dt").inner_text(): one.locator("dd").inner_text()
        for one in page.locator(".facts > div").all()
    }
    assert facts["Epoch"] == "10 of 10"
    assert facts["Update"] == "1,000"
    assert facts["Samples"] == "32,000"
    wait_for_chart(page, "loss")
    # folders of this machine
    page.locator(".origin").evaluate("(element) => { element.hidden = true; }")
    picture(page, "ui-run")


def test_only_parts_with_something_in_them_are_shown(visit: Open, rich: Served):
    page = visit("#/run/pix2pix", port=rich.port)
    titles = page.locator(".contents a")
    every = [
        "Curves",
        "Images, texts and tables",
        "Histograms",
        "Learning rate, speed and memory",
        "Where the time goes",
        "Events",
        "Log",
        "Config",
        "Environment",
        "Manifest",
    ]
    expect(titles).to_have_text(every)
    assert page.locator(".run-part h2").all_inner_texts() == every
    page = visit("#/run/plain", port=rich.port)
    expect(titles.last).to_have_text("Manifest")
    assert page.locator(".contents a").all_inner_texts() == [
        "Curves",
        "Events",
        "Log",
        "Config",
        "Environment",
        "Manifest",
    ]


def test_a_run_without_anything_says_what_will_come(visit: Open, rich: Served):
    page = visit("#/run/bare", port=rich.port)
    expect(page.locator(".coming")).to_contain_text("Nothing was recorded")
    expect(page.locator(".coming")).to_contain_text("trainer.log_images")
    expect(part(page, "curves")).to_have_count(0)


def test_a_damaged_run_is_shown_as_damaged_with_what_is_left_of_it(visit: Open, rich: Served):
    page = visit("#/run/damaged", port=rich.port)
    expect(page.locator(".run-head .problem")).to_contain_text("file is not a database")
    expect(page.locator(".run-title .pill")).to_have_text("damaged")
    expect(page.locator(".coming")).to_contain_text("cannot be read")
    expect(part(page, "config")).to_contain_text("width")


def test_settings_environment_and_manifest_are_there(visit: Open, rich: Served):
    page = visit("#/run/pix2pix", port=rich.port)
    optimizer = part(page, "config").locator(
        ".entry-card", has=page.get_by_role("heading", name="optimizer")
    )
    expect(optimizer.locator("dt")).to_have_text(["name", "lr", "betas"])
    expect(optimizer.locator("dd")).to_have_text(["Adam", "0.001", "[0.9,0.999]"])
    expect(part(page, "environment")).to_contain_text("torch")
    page.get_by_text("run.json, as the run wrote it").click()
    expect(part(page, "manifest").locator("pre")).to_contain_text('"state": "finished"')


def test_curves_of_the_run_are_in_their_parts_with_its_marks(visit: Open, rich: Served):
    page = visit("#/run/pix2pix", port=rich.port)
    wait_for_chart(page, "loss")
    assert part(page, "curves").locator("[data-panel]").count() == 2
    expect(part(page, "speed").locator("[data-panel]")).to_have_count(3)
    marks = [
        trace
        for trace in traces(page, "loss")
        if trace["axis"] == "y2" and trace["mode"] == "lines"
    ]
    assert [x for x in marks[0]["x"] if x is not None] == [500, 500]


def test_events_are_a_timeline_in_which_the_usual_ones_are_together(visit: Open, rich: Served):
    page = visit("#/run/pix2pix", port=rich.port)
    rows = part(page, "events").locator(".timeline > .event")
    expect(rows).to_have_count(5)
    expect(rows.nth(1)).to_contain_text("5 evaluations, 5 checkpoints, 3 new best values")
    expect(rows.nth(2)).to_contain_text("Resumed")
    rows.nth(1).locator("summary").press("Enter")
    expect(rows.nth(1).locator("li")).to_have_count(13)
    expect(rows.last).to_contain_text("Finished")


def test_where_the_time_goes_is_a_verdict_and_bars(visit: Open, rich: Served):
    page = visit("#/run/pix2pix?part=time", port=rich.port)
    expect(part(page, "time").locator(".verdict-first")).to_have_text(VERDICT)
    expect(part(page, "time").locator("code").first).to_have_text("on_log")
    page.wait_for_function("() => document.querySelector('#part-time .plot')?.data?.length === 1")
    bars = page.evaluate(
        "() => { const [bars] = document.querySelector('#part-time .plot').data; return "
        "[[...bars.x], bars.text[0]]; }"
    )
    # a detail of a thousandth has no bar
    assert bars[0] == pytest.approx([62.1, 12.9, 8.87, 16.13, 16.05], abs=0.01)
    assert bars[1].startswith("62.1 %")
    expect(part(page, "time")).to_contain_text("Peak memory: 512 MB")


# Images, texts, tables and histograms


def test_the_slider_goes_through_the_images_of_all_names_by_keyboard(
    visit: Open, rich: Served, picture: Callable[[Page, str], None]
):
    page = visit("#/run/pix2pix?part=media", port=rich.port)
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuetext", "step 1,000, epoch 9")
    newest = pictures(page, "samples/triplet")
    assert len(newest) == 3
    assert page.locator('[data-name="samples/triplet"] figcaption').all_inner_texts() == [
        "input",
        "generated",
        "target",
    ]
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "step 900, epoch 8")
    assert not set(pictures(page, "samples/triplet")) & set(newest)
    expect(page.locator('[data-name="notes"]')).to_contain_text(
        "After epoch 9: <b>all</b> is well & good."
    )
    expect(page.locator('[data-name="predictions"] tbody tr').first).to_contain_text("class 0")
    assert "at=900" in page.url
    picture(page, "ui-images")
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "step 100, epoch 0")
    expect(page.get_by_role("button", name="Earlier")).to_be_disabled()
    page.reload()
    expect(slider).to_have_attribute("aria-valuetext", "step 100, epoch 0")
    page.get_by_role("button", name="Later").click()
    expect(slider).to_have_attribute("aria-valuetext", "step 200, epoch 1")
    page.get_by_role("button", name="Newest").click()
    expect(slider).to_have_attribute("aria-valuetext", "step 1,000, epoch 9")
    assert pictures(page, "samples/triplet") == newest
    assert "at=" not in page.url


@pytest.mark.parametrize(("size", "columns"), [(1280, 6), (390, 3)])
def test_images_that_belong_together_stay_in_a_row(
    visit: Open, tmp_path: Path, size: int, columns: int
):
    run = make_demo_run(
        tmp_path / "runs" / "many", steps=4, epochs=1, media=False, resumed=False, names=("loss",)
    )
    captions = tuple(
        f"epoch1_{number}_{what}" for number in (1, 2, 3) for what in ("input", "output", "target")
    )
    store = MetricsStore(run / "metrics.sqlite")
    images = Images(tuple(demo_image(16, number, 5) for number in range(9)), captions)
    store.add_media(Media("examples", images, 4, 4, 0, 4, 1.0, 1.7e9))
    store.close()
    with serving(tmp_path / "runs") as server:
        page = visit("#/run/many?part=media", port=server.port, size=(size, 800))
        assert len(pictures(page, "examples")) == 9
        heights = [
            one.bounding_box() for one in page.locator('[data-name="examples"] figure').all()
        ]
        rows = [
            sum(1 for box in heights if box and round(box["y"]) == top)
            for top in sorted({round(box["y"]) for box in heights if box})
        ]
        assert rows == [columns] * (9 // columns) + [9 % columns] * (9 % columns > 0)
        assert page.evaluate("() => document.documentElement.scrollWidth") == size


def test_an_image_opens_large_and_goes_on_through_the_steps(visit: Open, rich: Served):
    page = visit("#/run/pix2pix?part=media", port=rich.port)
    pictures(page, "samples/triplet")
    page.locator('[data-name="samples/triplet"] button').nth(1).press("Enter")
    large = page.locator("dialog img")
    expect(large).to_be_visible()
    expect(page.locator("dialog h2")).to_have_text("samples/triplet: generated")
    first = large.get_attribute("src")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("dialog")).to_contain_text("step 900")
    assert large.get_attribute("src") != first
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator('[data-name="samples/triplet"] button').nth(1)).to_be_focused()


def test_histograms_are_a_heat_map_over_the_steps(visit: Open, rich: Served):
    page = visit("#/run/pix2pix?part=histograms", port=rich.port)
    plot = "document.querySelector('[data-histogram=\"weights/layer1\"] .plot')"
    page.wait_for_function(f"() => {plot}?.data?.[0]?.type === 'heatmap'")
    x, y, z = page.evaluate(
        f"() => {{ const [map] = {plot}.data; return [[...map.x], [...map.y], map.z.map((row) => "
        "[...row])]; }"
    )
    assert len(x) == 11  # edges of ten histograms
    assert x[:3] == [50, 150, 250]
    assert len(z) == len(y) - 1
    for column in range(10):  # every histogram is whole: the roots of the shares in its bins
        assert sum((row[column] or 0) ** 2 for row in z) == pytest.approx(1)
    widths = [sum(row[column] is not None for row in z) for column in (0, 9)]
    assert widths[0] > 3 * widths[1]  # the demo's weights become narrower


# Log, failures, checkpoints


def test_the_log_is_coloured_and_filtered_by_level_and_words(visit: Open, rich: Served):
    page = visit("#/run/pix2pix?part=log", port=rich.port)
    lines = part(page, "log").locator(".log-line")
    expect(lines).to_have_count(12)
    warning = part(page, "log").locator(".log-line.warning")
    expect(warning).to_contain_text("resumed at update 500")
    colour = "(line) => getComputedStyle(line.querySelector('.log-text')).color"
    assert warning.evaluate(colour) != lines.first.evaluate(colour)
    part(page, "log").get_by_label("Level").select_option("WARNING")
    expect(lines).to_have_count(1)
    page.reload()
    expect(lines).to_have_count(1)
    part(page, "log").get_by_label("Level").select_option("DEBUG")
    page.keyboard.press("/")
    expect(page.get_by_label("Search the log")).to_be_focused()
    page.keyboard.type("epoch 7")
    expect(lines).to_have_count(1)
    page.keyboard.type("77")
    expect(part(page, "log")).to_contain_text("None of the 12 lines")


def test_checkpoints_are_verified_on_demand_and_damage_is_said(visit: Open, tmp_path: Path):
    training = start(tmp_path / "runs" / "trained", num_epochs=2, wait=0)
    training.join()
    with serving(tmp_path / "runs") as server:
        page = visit("#/run/trained", port=server.port)
        rows = part(page, "checkpoints").locator("tbody tr")
        expect(rows.first).to_be_visible()
        assert set(rows.locator("td:last-child").all_inner_texts()) == {"complete"}
        page.get_by_role("button", name="Verify contents").click()
        expect(rows.first.locator("td").last).to_have_text("verified")
        assert set(rows.locator("td:last-child").all_inner_texts()) == {"verified"}
        damaged = max(
            tmp_path.glob("runs/trained/checkpoints/*/*"), key=lambda path: path.stat().st_size
        )
        damaged.write_bytes(bytes(damaged.stat().st_size))
        page.get_by_role("button", name="Verify contents").click()
        expect(part(page, "checkpoints").locator(".pill.bad")).to_have_text("damaged")


# Live


def test_a_run_appears_paints_and_fails_before_the_eyes(visit: Open, tmp_path: Path):
    runs, gates = _made(tmp_path / "runs"), tmp_path / "gates"
    with serving(runs) as server:
        page = visit("#/run/painter", port=server.port)
        expect(page.locator(".empty")).to_contain_text("If it appears, it is shown here")
        training = start_painting(runs / "painter", gates, num_epochs=9, fail_at=5 * STEPS)
        try:
            slider = page.get_by_role("slider")
            gates.joinpath("8").touch()
            expect(slider).to_have_attribute("max", "1")
            expect(page.get_by_role("button", name="Following")).to_have_attribute(
                "aria-pressed", "true"
            )
            expect(page.locator(".run-title .pill")).to_have_text("running")
            first = pictures(page, "triplet")
            gates.joinpath("16").touch()  # followed
            expect(slider).to_have_attribute("max", "2")
            expect(slider).to_have_value("2")
            assert not set(pictures(page, "triplet")) & set(first)
            expect(page.locator('[data-name="note"]')).to_contain_text("painted after 16 steps")
            slider.press("ArrowLeft")
            held = pictures(page, "triplet")
            gates.joinpath("24").touch()  # not followed: the reader looks at something
            expect(slider).to_have_attribute("max", "3")
            expect(slider).to_have_value("1")
            expect(slider).to_be_focused()
            assert pictures(page, "triplet") == held
            expect(page.locator(".log-line.warning").last).to_contain_text("painted after 24 steps")
            page.get_by_role("button", name="Newest").click()
            gates.joinpath("32").touch()
            expect(slider).to_have_value("4")
            gates.joinpath("40").touch()
            expect(part(page, "failure")).to_contain_text("RuntimeError: no <b>paint</b> is left")
            expect(part(page, "failure").locator(".trace-error")).to_have_text(
                "RuntimeError: no <b>paint</b> is left"
            )
            expect(page.locator(".run-title .pill")).to_have_text("failed")
            texts = page.locator(".log-line.warning .log-text").all_inner_texts()
            painted = [
                text.partition("painted after ")[2] for text in texts if "painted after" in text
            ]
            assert painted == [f"{step} steps" for step in range(0, 41, 8)]  # each line once
            expect(part(page, "events").locator("[data-kind=failed]")).to_contain_text(
                "no <b>paint</b> is left"
            )
        finally:
            training.kill()
            training.join()


def test_a_run_whose_folder_is_removed_stays_on_the_page_and_says_so(visit: Open, tmp_path: Path):
    run = make_demo_run(
        tmp_path / "runs" / "short", steps=20, epochs=1, media=False, resumed=False, names=("loss",)
    )
    with serving(tmp_path / "runs") as server:
        page = visit("#/run/short", port=server.port)
        expect(part(page, "log")).to_be_visible()
        run.rename(tmp_path / "elsewhere")
        expect(page.locator(".run-head .problem")).to_contain_text("was removed or renamed")
        expect(part(page, "log")).to_be_visible()


# Names, looks, keyboard


def test_markup_in_every_name_and_text_is_text(visit: Open, rich: Served):
    page = visit(f"#/run/{quote(MARKUP, safe='')}", port=rich.port)
    expect(page.locator("h1")).to_have_text(MARKUP)
    expect(page.locator(".run-title .tag")).to_have_text(MARKUP)
    expect(part(page, "failure")).to_contain_text(f"RuntimeError: {MARKUP}")
    expect(part(page, "config")).to_contain_text(MARKUP)
    expect(page.locator(f'[data-name="text {MARKUP}"] .media-text')).to_have_text(MARKUP)
    expect(page.locator(f'[data-name="table {MARKUP}"] td').first).to_have_text(MARKUP)
    expect(page.locator(f'[data-name="images {MARKUP}"] figcaption')).to_have_text(MARKUP)
    expect(part(page, "log").locator(".error").first).to_contain_text(MARKUP)
    expect(part(page, "events")).to_contain_text(MARKUP)
    for key in ("histograms", "time", "curves"):
        part(page, key).scroll_into_view_if_needed()
        page.wait_for_function(
            "(key) => document.querySelector(`#part-${key} .plot`)?.data?.length > 0", arg=key
        )
    assert page.evaluate(
        "() => [...document.images].every((one) => "
        "one.getAttribute('src').startsWith('/api/media/'))"
    )
    assert page.locator("[onerror]").count() == 0


def test_the_page_is_no_wider_than_a_phone_and_dark_where_the_system_is(
    visit: Open, rich: Served, picture: Callable[[Page, str], None]
):
    page = visit("#/run/pix2pix?part=media", port=rich.port, phone=True, dark=True)
    pictures(page, "samples/triplet")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    boxes = [
        image.bounding_box() for image in page.locator('[data-name="samples/triplet"] img').all()
    ]
    assert len({round(box["y"]) for box in boxes if box}) == 1  # a triplet stays in a row
    assert (
        page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
        == "rgb(16, 19, 24)"
    )
    picture(page, "ui-run-phone")


def test_all_of_it_is_reached_by_the_keyboard_and_the_focus_is_seen(visit: Open, rich: Served):
    page = visit("#/run/pix2pix", port=rich.port)
    expect(page.locator(".contents a").last).to_have_text("Manifest")
    order = []
    for _ in range(60):
        page.keyboard.press("Tab")
        where, width = page.evaluate(
            """() => {
                const at = document.activeElement;
                const name = at.closest("section, nav, header")?.getAttribute("aria-label");
                return [name ?? at.className, getComputedStyle(at).outlineWidth];
            }"""
        )
        assert width != "0px", where
        order.append(where)
        if where == "Events":
            break
    seen = list(dict.fromkeys(order))
    wanted = [
        "Pages",
        "Where this run is",
        "Parts of this page",
        "loss",
        "Images, texts and tables",
        "Events",
    ]
    assert [where for where in seen if where in wanted] == wanted
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")  # anywhere on the page
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 900, epoch 8")
    page.keyboard.press("n")
    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 1,000, epoch 9")


def test_the_list_of_parts_leads_there_and_the_address_says_where(
    visit: Open, rich: Served, visitor: Visitor
):
    page = visit("#/run/pix2pix", port=rich.port)
    page.get_by_role("navigation", name="Parts of this page").get_by_role(
        "link", name="Environment"
    ).click()
    expect(part(page, "environment")).to_be_in_viewport()
    assert "part=environment" in page.url
    page.reload()
    expect(part(page, "environment")).to_be_in_viewport()
