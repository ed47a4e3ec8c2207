"""The command `loopwright`: its parser, errors in one line, exit codes, closed pipes."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence

from .._version import __version__
from ..errors import LoopwrightError
from . import (
    check,
    checkpoint,
    completion,
    config,
    diff,
    doctor,
    evaluate,
    export,
    finders,
    init,
    plot,
    query,
    report,
    runs,
    scale,
    show,
    sweep,
    train,
    tune,
    ui,
    watch,
)
from .arguments import print_help, take_overrides
from .exits import EXIT_CODES, FAILED, INTERRUPTED, PIPE_CLOSED
from .output import printable
from .parser import Parser, hint_for_file, parser_for

# Each adds its commands to the parser; a command imports its dependencies when it runs.
GROUPS = (
    *(init, check, train, sweep, evaluate, config, finders, tune, scale),
    *(ui, watch, report, runs, show, diff, plot, query, export, checkpoint, doctor, completion),
)
DESCRIPTION = """\
Train models, and look at the runs that training has recorded.

Commands that take a RUN use the last one if you name none. `loopwright COMMAND --help` has the details of a command."""
GLOSSARY = (
    "The words used here are explained at\n  "
    "https://github.com/loopwright/loopwright/blob/main/docs/words.md"
)


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
    words = _words(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    command = parser_for(parser, words)
    options, others = parser.parse_known_args(words)
    if unknown := take_overrides(options, others):
        command.error(
            f"`{command.name}` does not take "
            f"{' '.join(map(repr, unknown))}.{hint_for_file(command, unknown)}"
        )
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    return code


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="loopwright", description=DESCRIPTION, epilog=_epilog())
    parser.add_argument(
        "--version", action="version", version=f"loopwright {__version__}", help="print the version"
    )
    common = argparse.ArgumentParser(add_help=False)
    # accepted before and after the command
    for place, default in (
        (parser, False),
        (common, argparse.SUPPRESS),
    ):
        place.add_argument(
            "--debug", action="store_true", default=default, help="show the traceback of an error"
        )
    parser.set_defaults(run=lambda options: print_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in GROUPS:
        group.add_to(commands, common)
    return parser


def _epilog() -> str:
    codes = [(str(code), textwrap.wrap(what, 70)) for code, what in EXIT_CODES.items()]
    lines = [
        f"  {code if not at else '':<5}{line}"
        for code, wrapped in codes
        for at, line in enumerate(wrapped)
    ]
    return "\n".join(["exit codes:", *lines, "", GLOSSARY])


def _words(arguments: Sequence[str]) -> list[str]:
    """The words of a command; `help show` is `show --help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else list(arguments)


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


def _drop_output() -> None:
    """Discard buffered output: the interpreter would report the closed pipe when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
