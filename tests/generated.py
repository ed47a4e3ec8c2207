"""Parts of documentation pages that are written from the code: `python -m tests.generated` writes them all.

A part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`; a test compares each with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from loopwright import Callback
from loopwright.callback import hook_names

DOCS = Path(__file__).parent.parent / "docs"


def events() -> str:
    """The events of a callback, with their arguments and when they are called."""
    rows = ["| event | when |", "|---|---|"]
    for name in hook_names(Callback):
        method = getattr(Callback, name)
        arguments = ", ".join(argument for argument in inspect.signature(method).parameters if argument != "self")
        text = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
        rows.append(f"| `{name}({arguments})` | {_sentence(text)} |")
    return "\n".join(rows)


def _sentence(text: str) -> str:
    text = text.removeprefix("Called ")
    return text[0].upper() + text[1:]


PARTS: dict[tuple[str, str], Callable[[], str]] = {("trainer.md", "events"): events}


def pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- generated: {name} -->\n\n).*?(\n<!-- end: {name} -->)", re.S)


def current(page: str, name: str) -> str:
    """The part as the page has it."""
    found = pattern(name).search((DOCS / page).read_text())
    assert found is not None, f"docs/{page} has no part {name!r}"
    return found[0]


def expected(page: str, name: str) -> str:
    return f"<!-- generated: {name} -->\n\n{PARTS[page, name]()}\n<!-- end: {name} -->"


if __name__ == "__main__":
    for page, name in PARTS:
        path = DOCS / page
        path.write_text(path.read_text().replace(current(page, name), expected(page, name)))
