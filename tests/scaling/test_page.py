"""docs/scaling.md shows what the code computes."""

from __future__ import annotations

from tests.scaling.page import PAGE, PARTS, renewed


def test_tables_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(
        f"<!-- {name}: generated -->" in page and f"<!-- {name}: end -->" in page for name in PARTS
    )
    assert renewed(page) == page, "run `python -m tests.scaling.page`"
