"""The command `loopwright`: its parser, errors in one line, exit codes, closed pipes."""

from __future__ import annotations

import argparse
import os
import sys
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
from .arguments import take_overrides
from .exits import EXIT_CODES, FAILED, INTERRUPTED, OK, PIPE_CLOSED
from .output import printable

# Each adds its commands to the parser; a command imports its dependencies when it runs.
GROUPS = (
    *(init, check, train, sweep, evaluate, config, finders, tune, scale),
    *(ui, watch, report, runs, show, diff, plot, query, export, checkpoint, doctor, completion),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as `loopwright` in a shell does.

    Args:
        arguments: The words after `loopwright`; None takes them from `sys.argv`.

    Returns:
        The exit code: 0 done, 1 done and the answer is no, 2 failed (the reason is on stderr), 130 interrupted.
        Arguments that cannot be parsed raise SystemExit, as argparse does.

    >>> import io
    >>> from contextlib import redirect_stdout
    >>> from loopwright.cli import main
    >>> with redirect_stdout(io.StringIO()) as printed:
    ...     code = main(["completion", "bash"])
    >>> code, "complete -F _loopwright loopwright" in printed.getvalue()
    (0, True)
    """
    parser = build_parser()
    options, others = parser.parse_known_args(arguments)
    if unknown := take_overrides(options, others):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="loopwright",
        description="Train, look at and compare runs.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"loopwright {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    for place, default in ((parser, False), (common, argparse.SUPPRESS)):  # accepted before and after the command
        place.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
    parser.set_defaults(run=lambda options: show_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in GROUPS:
        group.add_to(commands, common)
    return parser


def show_help(parser: argparse.ArgumentParser) -> int:
    """Print the help; used where no command is named."""
    parser.print_help()
    return OK


def _run(options: argparse.Namespace) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files may hold what the terminal's encoding does not
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
