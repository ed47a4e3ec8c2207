"""The page of mistakes, `docs/mistakes.md`: each row is a mistake that a test makes, and what the test saw said.

`make mistakes` runs those tests and writes the page. In an ordinary run each test compares its own row with the page.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
ROWS = "LOOPWRIGHT_MISTAKES"  # in the environment: the file that rows are added to while the page is written
SECTIONS = (
    "The program changed, the run directory did not",
    "Up or down",
    "Steps that train nothing, or the wrong thing",
    "Arguments",
    "Data",
    "Files",
    "Checkpoints and resuming",
    "Several processes",
    "Command line",
    "Door: simple",
    "Door: lifecycle",
    "Door: configured",
    "Door: modular",
    "Door: adversarial",
)
HEADINGS = {"Up or down": "Which values of a metric are better"}  # where the page has another one
OPENING = """# Errors by message

This page lists common mistakes with the message that each one prints. Search it for a part of a message to see what
causes it, or read a section to see what Loopwright checks.

Every message is taken from a test that makes the mistake. `make mistakes` writes this page from the tests, and a test
fails if its message differs from this page. Temporary folders of the tests are shown as `...`.
"""


class Mistakes:
    """What a test is given as `mistake`: makes the mistake, catches what is said, and compares it with the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def __call__(
        self, section: str, what: str, error: type[BaseException], *, match: str | None = None, hide: str | None = None
    ) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        """Expect `error` with a message that fits `match`; `what` is the mistake in words, with code in backticks.

        `hide` is a pattern of what differs from run to run (a process id, an age), shown as `...`.
        """
        with pytest.raises(error, match=match) as caught:
            yield caught
        self.said(section, what, str(caught.value), hide=hide)

    def said(self, section: str, what: str, text: str, *, hide: str | None = None) -> None:
        """A mistake about which a line is printed, or which has been caught already."""
        assert section in SECTIONS, f"{section!r} is no section of the page: use one of {SECTIONS}."
        text = text.replace(str(self.folder), "...").strip()
        text = re.sub(hide, "...", text) if hide else text
        row = {"section": section, "what": what, "said": text}
        if os.environ.get(ROWS):
            with open(os.environ[ROWS], "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            return
        page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        assert text_of(row) in page, f"docs/mistakes.md does not have this row; run `make mistakes`:\n{text_of(row)}"


def text_of(row: dict[str, str]) -> str:
    """A row as it stands on the page."""
    quoted = "\n".join(f"    {line}".rstrip() for line in row["said"].splitlines())
    return f"**{row['what']}**\n\n{quoted}\n"


def on_page(section: str) -> str:
    """What the page says under the heading of a section."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {heading_of(section)}\n")[2].partition("\n## ")[0]


def heading_of(section: str) -> str:
    """The heading of a section on the page."""
    return HEADINGS.get(section, section.replace("Door: ", "Interface: "))


def write_page(rows: list[dict[str, str]]) -> None:
    """Write the page: sections in their order, rows by name, each once."""
    parts = [OPENING]
    for section in SECTIONS:
        own = {row["what"]: row for row in rows if row["section"] == section}
        if own:
            parts += [f"## {heading_of(section)}\n", *(text_of(own[what]) for what in sorted(own))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run the tests that make mistakes (all, or those of the paths given) and write the page."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        os.environ[ROWS] = str(file)
        code = pytest.main(["-m", "mistake", "-p", "no:cacheprovider", *arguments])
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if code == 0:
        write_page(rows)
        print(f"{len(rows)} mistakes are on {PAGE.name}.")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
