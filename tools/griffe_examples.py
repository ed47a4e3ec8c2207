"""An extension for the API reference: examples in docstrings become its example sections.

Our docstrings call them `Example:`, or have the first `>>>` right after the text; the parser of the
reference wants `Examples:` above them, and takes brackets elsewhere for links.
"""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rewrites docstrings as the reference reads them."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)


def with_examples(text: str) -> str:
    """The docstring with its examples in a section of their own.

    >>> with_examples("Add.\\n\\n>>> 1 + 1\\n2")
    'Add.\\n\\nExamples:\\n    >>> 1 + 1\\n    2'
    """
    lines = text.replace("\nExample:\n", "\nExamples:\n").split("\n")
    first = next((number for number, line in enumerate(lines) if line.startswith(">>> ")), None)
    if first is None:
        return _headed(lines)
    block = ["    " + line if line else line for line in lines[first:]]
    return "\n".join([*lines[:first], "Examples:", *block])


def _headed(lines: list[str]) -> str:
    """Any other heading above an example, such as a sentence that ends in a colon, stands before
    the section."""
    for number, line in enumerate(lines[:-1]):
        if line.endswith(":") and lines[number + 1].startswith("    >>> ") and line != "Examples:":
            return "\n".join(
                [*lines[:number], line[:-1] + ".", "", "Examples:", *lines[number + 1 :]]
            )
    return "\n".join(lines)
