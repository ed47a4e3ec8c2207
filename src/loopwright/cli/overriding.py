"""CONFIG and KEY=VALUE on a command line: how commands that start from a run file take them, in any order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

OVERRIDES = """\
change a value: model.width=32, trainer.callbacks.0.patience=3; add one: +model.depth=2; remove one: ~scheduler"""


def add_config(parser: argparse.ArgumentParser, *, what: str = "a run file (YAML)", nargs: str | None = None) -> None:
    """The places for a run file and for what is to be different from it."""
    parser.add_argument("config", metavar="CONFIG", help=what, nargs=nargs)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=OVERRIDES)


def take_overrides(options: argparse.Namespace, others: Sequence[str]) -> list[str]:
    """Add to the overrides those that come after an option, which argparse leaves over; the rest is returned.

    A command that takes `files`, however many, takes those that are left over as well.
    """
    if not isinstance(getattr(options, "overrides", None), list):
        return list(others)
    if isinstance(getattr(options, "files", None), list):
        options.files = [*options.files, *(text for text in others if is_file(text))]
        others = [text for text in others if not is_file(text)]
    options.overrides = [*options.overrides, *(text for text in others if is_override(text))]
    return [text for text in others if not is_override(text)]


def is_file(text: str) -> bool:
    """Whether an argument looks like a file, rather than like an override or an option."""
    return not is_override(text) and not text.startswith("-")


def is_override(text: str) -> bool:
    """Whether an argument looks like one, rather than like a file or an option."""
    return ("=" in text and not text.startswith("-")) or text.startswith(("~", "+"))
