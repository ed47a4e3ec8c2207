"""Arguments that commands share: how a command and its help are added, CONFIG and KEY=VALUE, RUN
and --checkpoint."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .parser import Parser

Command = Callable[[argparse.Namespace], int]
OVERRIDES = "change a value (model.width=32), add one (+model.depth=2) or remove one (~scheduler)"
ROOT = "runs"
RUN = "a run: its path, the beginning of its name or id, or `last`"
LAST = "last"
WHICH = "`best`, `newest`, the number of an update, or the name or path of a checkpoint"
DEFAULT_WHICH = "the best kept model; if the run kept none, the newest resume point"
PROGRAMS = (".py", ".ipynb")
EXAMPLE_WIDTH = 78


def add_command(
    parsers: Any,
    common: argparse.ArgumentParser,
    name: str,
    *,
    run: Command,
    what: str,
    more: str,
    example: str,
) -> Parser:
    """Add a parser: `what` is the first sentence of its help, `more` the paragraph, `example` its
    arguments.

    Each line of `example` is a command without the word `loopwright`. The names in `metavar` of its
    arguments say how a shell completes them: RUN, CONFIG, CHECKPOINT, DIR, FILE.
    """
    parser: Parser = parsers.add_parser(
        name,
        help=what[0].lower() + what[1:].rstrip("."),
        description=f"{what}\n\n{more}" if more else what,
        epilog=examples_text(example),
        parents=[common],
    )
    parser.set_defaults(run=run, command=name)
    return parser


def add_group(parsers: Any, name: str, *, what: str, more: str, example: str) -> Any:
    """Add a command that consists of others; alone it prints its help. Returns the place to add the
    others to."""
    group: Parser = parsers.add_parser(
        name,
        help=what[0].lower() + what[1:].rstrip("."),
        description=f"{what}\n\n{more}" if more else what,
        epilog=examples_text(example),
    )
    group.set_defaults(run=lambda options: print_help(group))
    return group.add_subparsers(title="commands", metavar="COMMAND")


def print_help(parser: argparse.ArgumentParser) -> int:
    """Print the help; what a command that consists of others does when none of them is named."""
    parser.print_help()
    return 0


def examples_text(example: str) -> str:
    """The examples of a help text; a long one is continued on the next line, as a shell allows."""
    lines = ["examples:"]
    for text in example.splitlines():
        line = "  loopwright"
        for word in re.findall(
            r"--?[a-z][\w-]* '[^']*'|--?[a-z][\w-]* [^-\s]\S*|'[^']*'|\"[^\"]*\"|\S+", text
        ):
            if len(line) + len(word) + 3 > EXAMPLE_WIDTH:
                lines.append(f"{line} \\")
                line = "     "
            line += f" {word}"
        lines.append(line)
    return "\n".join(lines)


def add_config(
    parser: argparse.ArgumentParser, *, what: str = "a run file (YAML)", nargs: str | None = None
) -> None:
    """Add the arguments CONFIG and KEY=VALUE."""
    parser.add_argument("config", metavar="CONFIG", help=what, nargs=nargs)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=OVERRIDES)


def take_overrides(options: argparse.Namespace, others: Sequence[str]) -> list[str]:
    """Add overrides that come after an option, which argparse does not parse; return the arguments
    left over.

    Of a command that takes any number of `files`, files are taken as well.
    """
    if not isinstance(getattr(options, "overrides", None), list):
        return list(others)
    if isinstance(getattr(options, "files", None), list):
        options.files = [*options.files, *(text for text in others if is_file(text))]
        others = [text for text in others if not is_file(text)]
    options.overrides = [*options.overrides, *(text for text in others if is_override(text))]
    _put_first(options)
    return [text for text in others if not is_override(text)]


def _put_first(options: argparse.Namespace) -> None:
    """Let CONFIG be the file where KEY=VALUE was written before it."""
    config = getattr(options, "config", None)
    file = next((text for text in options.overrides if is_file(text)), None)
    if (
        config is not None
        and file is not None
        and is_override(config)
        and not Path(config).exists()
    ):
        options.overrides.remove(file)
        options.config = file
        options.overrides = [config, *options.overrides]


def is_file(text: str) -> bool:
    """Whether an argument looks like a file, rather than like an override or an option."""
    return not is_override(text) and not text.startswith("-")


def is_override(text: str) -> bool:
    """Whether an argument looks like an override, rather than like a file or an option."""
    return ("=" in text and not text.startswith("-")) or text.startswith(("~", "+"))


def add_run(parser: argparse.ArgumentParser, dest: str = "name", *, what: str = RUN) -> None:
    """Add the argument RUN, by default the last run, and --root."""
    parser.add_argument(
        dest, metavar="RUN", nargs="?", default=LAST, help=f"{what} (default: last)"
    )
    add_root(parser)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the folder of runs."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        default=ROOT,
        help=f"the folder to look for runs in (default: {ROOT})",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a checkpoint of the run."""
    parser.add_argument("--checkpoint", metavar="WHICH", help=f"{WHICH} (default: {DEFAULT_WHICH})")


def add_two_runs(parser: argparse.ArgumentParser) -> None:
    """Add two RUN arguments, by default the last two runs, and --root."""
    parser.add_argument(
        "first", metavar="RUN", nargs="?", help=f"{RUN} (default: the last but one)"
    )
    parser.add_argument(
        "second",
        metavar="RUN",
        nargs="?",
        default=LAST,
        help="the run to compare it with (default: last)",
    )
    add_root(parser)
