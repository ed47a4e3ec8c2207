"""The pages of the site: what they name is there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGES = (
    "callbacks",
    "schedules",
    "initializers",
    "losses",
    "trackers",
    "tuning",
    "debug",
)


def test_every_test_behind_a_promise_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (DOCS / "promises.md").read_text())
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    module = importlib.import_module(f"loopwright.{package}".rstrip("."))
    shown = set(
        re.findall(
            r"^::: (\S+)$", "".join(page.read_text() for page in DOCS.glob("reference/*.md")), re.M
        )
    )
    expected = {f"{module.__name__}.{name}" for name in module.__all__ if name != "__version__"}
    assert sorted(expected - shown) == []


def test_every_page_is_in_the_navigation_or_a_decision() -> None:
    named = set(re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(page for page in pages - named if not page.startswith("decisions/")) == []
    assert sorted(named - pages) == []
