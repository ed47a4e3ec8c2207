"""The parser of commands: help that fits the terminal, a short usage line, and suggestions for what
was mistyped."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .exits import FAILED

MOST_WIDE = 100  # columns of a help text: longer lines are hard to read
OWN_LINE = "Exit code"  # begins a line of its own
HELP_COLUMN = 26  # where the explanations of options begin
SYNONYMS = {  # what people call a command, and the words for it here
    **dict.fromkeys(("fit", "run", "start", "launch"), "train"),
    **dict.fromkeys(("resume", "continue"), "train --resume last"),
    **dict.fromkeys(("evaluate", "test", "validate", "score"), "eval"),
    **dict.fromkeys(("infer", "inference"), "predict"),
    **dict.fromkeys(("list", "ls", "ps", "status", "experiments"), "runs"),
    **dict.fromkeys(("info", "inspect", "describe", "summary", "log", "logs"), "show"),
    **dict.fromkeys(("compare",), "diff"),
    **dict.fromkeys(("dashboard", "serve", "server", "tensorboard", "web"), "ui"),
    **dict.fromkeys(("tail", "follow", "monitor", "top"), "watch"),
    **dict.fromkeys(("draw", "graph", "chart", "curves"), "plot"),
    **dict.fromkeys(("html",), "report"),
    **dict.fromkeys(("sql",), "query"),
    **dict.fromkeys(("convert", "onnx", "save"), "export"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("env", "environment", "system"), "doctor"),
    **dict.fromkeys(("ckpt", "checkpoints", "weights"), "checkpoint"),
    **dict.fromkeys(("dry-run", "dryrun"), "check"),
    **dict.fromkeys(("grid", "search"), "sweep"),
    **dict.fromkeys(("lr", "find-lr", "lrfind"), "lr-find"),
    "version": "--version",
}
OPTION_SYNONYMS = {
    **dict.fromkeys(("--ckpt", "--ckpt-path", "--weights", "--epoch"), "--checkpoint"),
    **dict.fromkeys(("--dir", "--run-dir", "--runs", "--folder", "--logdir"), "--root"),
    **dict.fromkeys(("--dataset", "--split"), "--data"),
    **dict.fromkeys(("--metrics", "--name"), "--metric"),
    **dict.fromkeys(("--overwrite", "--replace"), "--force"),
    **dict.fromkeys(("--out", "--file", "--save"), "--output"),
    **dict.fromkeys(("--continue",), "--resume"),
    **dict.fromkeys(("--workers", "--parallel"), "--jobs"),
    **dict.fromkeys(("--verbose", "--traceback"), "--debug"),
}
RUN_DIRECTORY = ("--run-dir", "--output-dir", "--save-dir", "--log-dir", "--logdir", "--dir")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal; lines that begin with a space stay as they
    are."""

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

    @property
    def name(self) -> str:
        """The command without the word `loopwright`."""
        return self.prog.partition(" ")[2]

    def error(self, message: str) -> NoReturn:
        self.fail(
            f"{message}\n{self.format_usage().rstrip()}\n`{self.prog} --help` has the details."
        )

    def fail(self, message: str) -> NoReturn:
        """Print what is wrong and exit; for a message that says itself what to do."""
        sys.stdout.flush()
        self.exit(FAILED, f"loopwright: {message}\n")


def short_usage(parser: argparse.ArgumentParser) -> str:
    """ "loopwright predict [RUN] --data KEY [options]": the arguments, and only those options that
    are required."""
    words = [parser.prog]
    for action in parser._actions:
        name = str(action.metavar or action.dest)
        if isinstance(action, argparse._SubParsersAction):
            words.append("COMMAND ...")
        elif not action.option_strings:
            many = (
                f"{name} ..."
                if action.nargs in ("*", "+")
                else "..."
                if action.nargs == argparse.REMAINDER
                else name
            )
            words.append(f"[{many}]" if action.nargs in ("?", "*") else many)
        elif action.required:
            words.append(f"{action.option_strings[-1]} {name}")
    return " ".join([*words, "[options]"]).replace("%", "%%")


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The commands of a parser, or of a group of commands, by name."""
    found = (
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return next((dict(choices) for choices in found), {})


def parser_for(parser: Parser, words: Sequence[str]) -> Parser:
    """The parser of the command that these words call; a word that should be a command and is none
    is an error."""
    rest = iter(words)
    while commands := commands_of(parser):
        word = next((word for word in rest if not word.startswith("-")), None)
        if word is None:
            return parser
        if word not in commands:
            parser.fail(_unknown_command(parser, word, commands))
        parser = commands[word]
    if problem := _unknown_option(parser, list(rest)):
        parser.fail(problem)
    return parser


def _unknown_command(parser: Parser, word: str, commands: Collection[str]) -> str:
    if not parser.name and (meant := _meant_file(word)):
        return meant
    head = (
        f"`{parser.name}` has no command {word!r}."
        if parser.name
        else f"There is no command {word!r}."
    )
    plain = word.lower().replace("_", "-")
    synonym = "" if parser.name else SYNONYMS.get(plain, "")
    near = [plain] if plain in commands else [synonym] if synonym else _near(plain, commands)
    if near:
        return f"{head} Did you mean {' or '.join(f'`{parser.prog} {name}`' for name in near)}?"
    return f"{head} The commands are: {', '.join(commands)}."


def _meant_file(word: str) -> str | None:
    """What to do with a file or run that was given where a command belongs."""
    path = Path(word)
    if path.suffix == ".py":
        return f"{word} is a Python program, not a command. Start it with: python {word}"
    if path.suffix in (".yaml", ".yml"):
        return f"{word} is a run file, not a command. Train it with: loopwright train {word}"
    if (path / "run.json").is_file():
        return f"{word} is a run, not a command. Look at it with: loopwright show {word}"
    return None


def _near(word: str, known: Iterable[str]) -> list[str]:
    names = list(known)
    return difflib.get_close_matches(word, names, n=2) or [
        name for name in names if name.startswith(word)
    ]


def _unknown_option(parser: Parser, words: Sequence[str]) -> str | None:
    """What is wrong with the first option that the command does not have; None if it has all of
    them."""
    known = parser._option_string_actions
    for word in _own_words(parser, words):
        name = word.partition("=")[0]
        if name.startswith("--") and not any(option.startswith(name) for option in known):
            hint = (
                _option_hint(parser, word, known) or f" `{parser.prog} --help` lists its options."
            )
            return f"`{parser.name}` has no option {name}.{hint}"
    return None


def _own_words(parser: Parser, words: Sequence[str]) -> Iterator[str]:
    """The words that are not meant for another program: those before `--`, or before the program's
    name."""
    has_program = any(action.nargs == argparse.REMAINDER for action in parser._actions)
    for word in words:
        if word == "--" or (has_program and not word.startswith("-")):
            return
        yield word


def _option_hint(parser: Parser, word: str, known: Collection[str]) -> str:
    name, _, value = word.partition("=")
    plain = name.lower().replace("_", "-")
    near = (
        [plain]
        if plain in known
        else [option for option in known if option == OPTION_SYNONYMS.get(plain)]
    )
    near = near or difflib.get_close_matches(
        plain, [option for option in known if option.startswith("--")], n=1
    )
    takes_values = any(action.dest == "overrides" for action in parser._actions)
    if takes_values and plain in RUN_DIRECTORY:
        return (
            " The run file names the run directory (output_path: DIR); here it is +output_path=DIR."
        )
    if takes_values and ("." in name or not near):
        example = f"{name[2:]}={value or '...'}" if "." in name else "trainer.max_epochs=20"
        return f" Values of the run file are changed without dashes: {example}"
    return f" Did you mean {near[0]}?" if near else ""


def hint_for_file(parser: Parser, words: Sequence[str]) -> str:
    """A hint where a file was named without `-o`."""
    is_file = len(words) == 1 and bool(Path(words[0]).suffix)
    return (
        f" Did you mean -o {words[0]}?"
        if is_file and "--output" in parser._option_string_actions
        else ""
    )
