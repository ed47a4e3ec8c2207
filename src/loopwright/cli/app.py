"""The command `loopwright`: its parser, errors in one line, exit codes, closed pipes."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from .._version import __version__
from ..errors import LoopwrightError
from . import commands, run_commands
from .exits import EXIT_CODES, FAILED, INTERRUPTED, OK, PIPE_CLOSED
from .output import printable
from .parser import Parser, take_overrides

COMMANDS = (*commands.COMMANDS, *run_commands.COMMANDS)
DESCRIPTION = """\
Train models, and look at the runs that training has recorded.

Commands that take a RUN use the last one if you name none. `loopwright COMMAND --help` has the details of a command."""
GLOSSARY = (
    "The words used here are explained at\n  "
    "https://github.com/loopwright/loopwright/blob/main/docs/words.md"
)
EXAMPLE_WIDTH = 78
WORDS = re.compile(r"--?[a-z][\w-]* '[^']*'|--?[a-z][\w-]* [^-\s]\S*|'[^']*'|\"[^\"]*\"|\S+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as `loopwright` in a shell does.

    Args:
        arguments: The words after `loopwright`; None takes them from `sys.argv`.

    Returns:
        The exit code: 0 success, 1 success but the answer is no, 2 error (stderr has the reason),
            130 interrupted.
        Arguments that cannot be parsed raise SystemExit, as argparse does.

    >>> import io
    >>> from contextlib import redirect_stdout
    >>> from loopwright.cli import main
    >>> with redirect_stdout(io.StringIO()) as printed:
    ...     code = main(["completion", "bash"])
    >>> code, "complete -F _loopwright loopwright" in printed.getvalue()
    (0, True)
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    options, others = build_parser().parse_known_args(words)
    if unknown := take_overrides(options, others):
        options.parser.refuse(unknown)
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Without this, the interpreter would report the closed pipe when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="loopwright", description=DESCRIPTION, epilog=_epilog())
    parser.add_argument(
        "--version", action="version", version=f"loopwright {__version__}", help="print the version"
    )
    common = Parser(add_help=False)
    for place, default in (
        (parser, False),
        (common, argparse.SUPPRESS),
    ):  # before and after COMMAND
        place.add_argument(
            "--debug", action="store_true", default=default, help="show the traceback of an error"
        )
    parser.set_defaults(run=_printing_help(parser), parser=parser)
    places = {"": parser.add_subparsers(title="commands", metavar="COMMAND")}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        added: Parser = places[group].add_parser(
            name,
            help=command.what[0].lower() + command.what[1:].rstrip("."),
            description=f"{command.what}\n\n{command.more}" if command.more else command.what,
            epilog=_examples(command.example),
            parents=[common] if command.function else [],
        )
        command.add_arguments(added)
        if command.function:
            added.set_defaults(run=_importing(command.function), command=name, parser=added)
        else:
            added.set_defaults(run=_printing_help(added), parser=added)
            places[name] = added.add_subparsers(title="commands", metavar="COMMAND")
    return parser


def _importing(function: str) -> Callable[[argparse.Namespace], int]:
    """A function that imports another one of this package, and calls it."""

    def run(options: argparse.Namespace) -> int:
        module, _, name = function.rpartition(".")
        code: int = getattr(import_module(f"{__package__}.{module}"), name)(options)
        return code

    return run


def _printing_help(parser: Parser) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        parser.print_help()
        return OK

    return run


def _examples(example: str) -> str:
    """The examples of a help text; a long one is continued on the next line, as a shell allows."""
    lines = ["examples:"]
    for text in example.splitlines():
        line = "  loopwright"
        for word in WORDS.findall(text):
            if len(line) + len(word) + 3 > EXAMPLE_WIDTH:
                lines.append(f"{line} \\")
                line = "     "
            line += f" {word}"
        lines.append(line)
    return "\n".join(lines)


def _epilog() -> str:
    lines = ["exit codes:"]
    for code, what in EXIT_CODES.items():
        first, *others = textwrap.wrap(what, 70)
        lines += [f"  {code:<5}{first}", *(f"       {line}" for line in others)]
    return "\n".join([*lines, "", GLOSSARY])


def _run(options: argparse.Namespace) -> int:
    for stream in (sys.stdout, sys.stderr):
        # names of files may hold what the terminal's encoding does not
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        raise
    except (LoopwrightError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        else:
            print("loopwright:", printable(str(error), keep="\n"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
