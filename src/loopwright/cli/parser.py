"""The parser of commands: help that fits the terminal, a short usage line, and short errors."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from ..text import near_names, nearest
from .exits import FAILED

MOST_WIDE = 100  # columns of a help text: longer lines are hard to read
OWN_LINE = "Exit code"  # begins a line of its own
HELP_COLUMN = 26  # where the explanations of options begin


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal; lines that begin with a space stay as they are."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(shutil.get_terminal_size().columns, MOST_WIDE) - 2
        super().__init__(prog, **{"max_help_position": HELP_COLUMN, "width": width} | options)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(rf"\n(?=\s)|(?<=\n)\n|\n(?={OWN_LINE})", text)
        return "\n".join(line for paragraph in paragraphs for line in _wrapped(paragraph, width))


def _wrapped(paragraph: str, width: int) -> list[str]:
    if not paragraph or paragraph[0].isspace() or paragraph.startswith("examples:"):
        return [paragraph]
    return textwrap.wrap(paragraph, width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are short: what is wrong, and how the command is called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter} | options)
        self._positionals.title = "arguments"

    def format_usage(self) -> str:
        self.usage = self.usage or short_usage(self)
        return super().format_usage()

    def format_help(self) -> str:
        self.usage = self.usage or short_usage(self)
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


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The commands of a parser, or of a group of commands, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def take_overrides(options: argparse.Namespace, others: Sequence[str]) -> list[str]:
    """Add KEY=VALUE that come after an option, which argparse leaves over; return the rest.

    Of a command that takes any number of `files`, files are taken as well.
    """
    if not isinstance(getattr(options, "overrides", None), list):
        return list(others)
    if isinstance(getattr(options, "files", None), list):
        options.files += [text for text in others if _is_file(text)]
        others = [text for text in others if not _is_file(text)]
    options.overrides = [*options.overrides, *filter(is_override, others)]
    return [text for text in others if not is_override(text)]


def is_override(text: str) -> bool:
    """Whether an argument looks like an override, rather than like a file or an option."""
    return ("=" in text and not text.startswith("-")) or text.startswith(("~", "+"))


def _is_file(text: str) -> bool:
    return not is_override(text) and not text.startswith("-")
