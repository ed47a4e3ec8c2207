"""One browser, one server and one folder of runs for all tests; and a page that is refused any
error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.sites import pages_of, serving
from tests.dashboard.serving import Served
from tests.demo_runs import make_demo_run

from .pictures import save_picture

pytest.importorskip(
    "playwright", reason="Playwright is not installed: pip install 'loopwright[dev]'"
)

from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright

CHROMIUM = os.environ.get("LOOPWRIGHT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
MARKUP = "<img src=x onerror=alert(1)>"
SIZE = {"width": 1280, "height": 800}
MILLISECONDS = 60_000  # after which something that must come has not come
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}

expect.set_options(timeout=MILLISECONDS)


class Browsers:
    """A browser for a desk and one for a phone, started when needed.

    Each keeps its files in a folder: there, unlike in a context without one, compiled scripts are
    kept, and plotly is compiled twice instead of for every page.
    """

    def __init__(self, playwright: Playwright, folder: Path) -> None:
        self.playwright, self.folder = playwright, folder
        self.contexts: dict[bool, BrowserContext] = {}

    def context(self, is_phone: bool) -> BrowserContext:
        if is_phone not in self.contexts:
            self.contexts[is_phone] = self.playwright.chromium.launch_persistent_context(
                self.folder / ("phone" if is_phone else "desk"),
                executable_path=CHROMIUM,
                args=[
                    "--no-sandbox",
                    "--lang=en-US",
                ],  # a locale that Intl knows: under C, it is `en-US@posix`
                **PHONE if is_phone else {"viewport": SIZE},
            )
        return self.contexts[is_phone]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsers]:
    if not Path(CHROMIUM).exists():
        pytest.skip(
            f"the live page needs a browser, and there is none at {CHROMIUM}: apt-get install "
            "chromium, or name one in LOOPWRIGHT_CHROMIUM"
        )
    with sync_playwright() as playwright:
        browsers = Browsers(playwright, tmp_path_factory.mktemp("profiles"))
        yield browsers
        for context in browsers.contexts.values():
            context.close()


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs as they lie around: a sweep, one with many steps, a failed one, a damaged one, one with
    a bad name."""
    root = tmp_path_factory.mktemp("browser") / "runs"
    small: dict[str, Any] = {
        "steps": 240,
        "epochs": 4,
        "image_size": 16,
        "resumed": False,
        "media": False,
    }
    for number in range(6):
        lr, width = 10.0 ** -(1 + number % 3), 16 << number // 3
        config = {"optimizer.lr": lr, "model.width": width}
        folder = root / "sweep" / f"lr={lr:g}-width={width}"
        make_demo_run(
            folder, **small, seed=number, config=config, tags=["sweep"], started=1.7e9 + number
        )
    names = ("loss", "accuracy", "lr", "train/grad_norm", "layers/0/norm", "layers/1/norm")
    make_demo_run(
        root / "long",
        steps=20_000,
        epochs=8,
        media=False,
        names=names,
        tags=["baseline"],
        started=1.71e9,
    )
    make_demo_run(
        root / "failed", **small, state="failed", config={"optimizer.lr": 1.0}, started=1.69e9
    )
    make_demo_run(root / MARKUP, **small, name=MARKUP, started=1.69e9 + 1)
    damaged = make_demo_run(root / "damaged", **small, started=1.69e9 + 2)
    damaged.joinpath("metrics.sqlite").write_bytes(b"this is no database " * 200)
    return root


@pytest.fixture(scope="session")
def site(runs_folder: Path) -> Iterator[Served]:
    with serving(runs_folder) as server:
        yield server


Open = Callable[..., Page]


class Visitor:
    """Opens pages, and keeps what went wrong in them."""

    def __init__(self, browsers: Browsers, site: Served) -> None:
        self.browsers, self.site = browsers, site
        self.stack = ExitStack()
        self.problems: list[str] = []
        self.is_expected = lambda problem: False

    def open(
        self,
        fragment: str = "",
        *,
        port: int | None = None,
        file: Path | None = None,
        wait: str = "h1, .empty",
        phone: bool = False,
        dark: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Page:
        """A page of the site, or a file; `wait` is what must be there before it is given."""
        page = self.browsers.context(phone).new_page()
        self.stack.callback(page.close)
        pages_of[port or self.site.port].append(page)
        if dark:
            page.emulate_media(color_scheme="dark")
        if size:
            page.set_viewport_size({"width": size[0], "height": size[1]})
        page.set_default_timeout(MILLISECONDS)
        home = file.as_uri() if file else f"http://127.0.0.1:{port or self.site.port}/"
        page.on(
            "console",
            lambda message: self._note(
                message.type in ("error", "warning"), f"console: {message.text}"
            ),
        )
        page.on("pageerror", lambda error: self._note(True, f"error: {error}"))
        page.on("dialog", lambda dialog: self._note(True, f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda sent: self._note(
                not sent.url.startswith((home, "data:", "blob:")), f"request: {sent.url}"
            ),
        )
        page.goto(f"{home}{fragment}")
        page.wait_for_selector(wait, state="attached")
        return page

    def _note(self, is_wrong: bool, problem: str) -> None:
        if is_wrong and not self.is_expected(problem):
            self.problems.append(problem)


@pytest.fixture
def visitor(chromium: Browsers, site: Served) -> Iterator[Visitor]:
    visitor = Visitor(chromium, site)
    yield visitor
    visitor.stack.close()
    assert visitor.problems == []


@pytest.fixture
def visit(visitor: Visitor) -> Open:
    return visitor.open


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Save a screenshot for the docs where LOOPWRIGHT_SCREENSHOTS names a folder."""
    return save_picture
