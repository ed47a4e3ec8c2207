"""How a command is added: the same look of `--help` for all, with an example and the exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .exits import EXIT_CODES

Command = Callable[[argparse.Namespace], int]


def add_command(
    parsers: Any,
    common: argparse.ArgumentParser,
    name: str,
    *,
    run: Command,
    what: str,
    more: str,
    example: str,
) -> argparse.ArgumentParser:
    """A parser for a command; `what` is its sentence, `more` the paragraph, `example` what follows `loopwright`.

    The names in `metavar` of its arguments say how a shell completes them: RUN, CONFIG, CHECKPOINT, DIR, FILE.
    """
    first, *others = example.splitlines()
    examples = "".join(f"\n         loopwright {line}" for line in others)
    parser: argparse.ArgumentParser = parsers.add_parser(
        name,
        help=what[0].lower() + what[1:].rstrip("."),
        description=f"{what}\n{more}",
        epilog=f"example: loopwright {first}{examples}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.set_defaults(run=run)
    return parser
