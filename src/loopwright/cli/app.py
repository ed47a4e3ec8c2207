"""The command `loopwright`: its parser, errors in one line, exit codes, closed pipes."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from importlib import import_module
from inspect import getdoc
from typing import Any, NoReturn

from .._version import __version__
from ..errors import LoopwrightError
from ..text import near_names, nearest
from .commands import COMMANDS
from .output import EXIT_CODES, FAILED, INTERRUPTED, OK, PIPE_CLOSED, printable

DESCRIPTION = """\
Train models, and look at the runs that training has recorded.

Commands that take a RUN use the last one if you name none. `loopwright COMMAND --help` has the details of a command."""
GLOSSARY = (
    "The words used here are explained at\n  "
    "https://github.com/loopwright/loopwright/blob/main/docs/words.md"
)
MOST_WIDE = 100  # columns of a help text: longer lines are hard to read
HELP_COLUMN = 26  # where the explanations of options begin
# what is printed as it is: lines that begin with a space, and the title of examples
PARAGRAPHS = re.compile(r"\n(?=\s)|(?<=\n)\n|\n(?=Exit code)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, as `loopwright` in a shell does.

    Args:
        arguments: The words after `loopwright`; None takes them from `sys.argv`.

    Returns:
        The exit code: 0 success, 1 success but the answer is no, 2 error (stderr has the reason),
            130 interrupted.
        Arguments that cannot be parsed raise SystemExit, as argparse does.

    >>> from loopwright.cli import main
    >>> main(["runs", "no-such-folder"])
    2
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    options, others = build_parser().parse_known_args(words)
    if unknown := take_overrides(options, others):
        options.parser.refuse(unknown)
    for stream in (sys.stdout, sys.stderr):
        # names of files may hold what the terminal's encoding does not
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Without this, the interpreter would report the closed pipe when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (LoopwrightError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        else:
            print("loopwright:", printable(str(error), keep="\n"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _run(options: argparse.Namespace) -> int:
    """Import the function of the command, and call it; a group of commands prints its help."""
    if not options.function:
        options.parser.print_help()
        return OK
    module, _, name = options.function.rpartition(".")
    code: int = getattr(import_module(f"{__package__}.{module}"), name)(options)
    return code


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="loopwright", description=DESCRIPTION, epilog=_epilog())
    version = f"loopwright {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version")
    common = Parser(add_help=False)
    traced = "show the traceback of an error"
    parser.add_argument("--debug", action="store_true", help=traced)
    # after COMMAND as well
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=traced)
    parser.set_defaults(function="", parser=parser)
    places = {"": parser.add_subparsers(title="commands", metavar="COMMAND")}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        text, _, examples = (getdoc(command.add_arguments) or "").partition("\n\nexamples:")
        what = text.partition("\n")[0]
        added: Parser = places[group].add_parser(
            name,
            help=what[:1].lower() + what[1:].rstrip("."),
            description=text,
            epilog=f"examples:{examples}",
            parents=[common] if command.function else [],
        )
        command.add_arguments(added)
        added.set_defaults(function=command.function, command=name, parser=added)
        if not command.function:
            places[name] = added.add_subparsers(title="commands", metavar="COMMAND")
    return parser


def _epilog() -> str:
    lines = ["exit codes:"]
    for code, what in EXIT_CODES.items():
        first, *others = textwrap.wrap(what, 70)
        lines += [f"  {code:<5}{first}", *(f"       {line}" for line in others)]
    return "\n".join([*lines, "", GLOSSARY])


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal; lines that begin with a space stay as they are."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(shutil.get_terminal_size().columns, MOST_WIDE) - 2
        super().__init__(prog, **{"max_help_position": HELP_COLUMN, "width": width} | options)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for paragraph in PARAGRAPHS.split(text):
            if not paragraph or paragraph[0].isspace():
                lines.append(paragraph)
            else:
                lines += textwrap.wrap(
                    paragraph, width, break_long_words=False, break_on_hyphens=False
                )
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are short: what is wrong, and how the command is called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter} | options)
        self._positionals.title = "arguments"

    def format_usage(self) -> str:
        self.usage = short_usage(self)
        return super().format_usage()

    def format_help(self) -> str:
        self.usage = short_usage(self)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        sys.stdout.flush()
        usage = self.format_usage().rstrip()
        details = f"`{self.prog} --help` has the details."
        self.exit(FAILED, f"loopwright: {message}\n{usage}\n{details}\n")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Report arguments that the command does not have."""
        name, _, value = words[0].partition("=")
        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = near_names(name, options, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else ""
        if "." in name and any(action.dest == "overrides" for action in self._actions):
            hint = f" A value of the run file has no dashes: {name.lstrip('-')}={value or '...'}"
        self.error(f"`{self.prog}` does not take {' '.join(map(repr, words))}.{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Report an unknown command or choice with the nearest known ones."""
        if action.choices is not None and value not in action.choices:
            what = f"there is no {value!r}: {nearest(value, action.choices)}"
            raise argparse.ArgumentError(action, what)


def short_usage(parser: argparse.ArgumentParser) -> str:
    """ "loopwright predict [RUN] --data KEY [options]": arguments, and required options."""
    words = [parser.prog]
    for action in parser._actions:
        name = str(action.metavar or action.dest)
        if isinstance(action, argparse._SubParsersAction):
            words.append("COMMAND ...")
        elif action.option_strings:
            words += [f"{action.option_strings[-1]} {name}"] if action.required else []
        elif action.nargs == argparse.REMAINDER:
            words.append("...")
        else:
            many = f"{name} ..." if action.nargs in ("*", "+") else name
            words.append(f"[{many}]" if action.nargs in ("?", "*") else many)
    return " ".join([*words, "[options]"]).replace("%", "%%")


def take_overrides(options: argparse.Namespace, others: Sequence[str]) -> list[str]:
    """Add KEY=VALUE that come after an option, which argparse leaves over; return the rest.

    Of a command that takes any number of `files`, files are taken as well.
    """
    taken = vars(options)
    unknown = []
    for text in others:
        if "overrides" in taken and is_override(text):
            options.overrides = [*options.overrides, text]
        elif "files" in taken and not text.startswith("-"):
            options.files.append(text)
        else:
            unknown.append(text)
    return unknown


def is_override(text: str) -> bool:
    """Whether an argument looks like an override, rather than like a file or an option."""
    return ("=" in text and not text.startswith("-")) or text.startswith(("~", "+"))
