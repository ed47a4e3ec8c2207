"""`loopwright completion bash|zsh|fish`: a script made from the parser itself, so that it knows every command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .arguments import add_command
from .exits import OK

MORE = """\
It completes commands, options and their choices, run directories below runs/, YAML files and paths.

  bash  loopwright completion bash > ~/.local/share/bash-completion/completions/loopwright
  zsh   loopwright completion zsh > ~/.zfunc/_loopwright     (with fpath+=~/.zfunc before compinit in .zshrc)
  fish  loopwright completion fish > ~/.config/fish/completions/loopwright.fish

or, for this shell only, as in the example."""
EXAMPLE = """\
completion bash
completion bash > loopwright.bash && source loopwright.bash"""
SHELLS = ("bash", "zsh", "fish")
KINDS = {  # what an argument is, by its name in the help
    "RUN": "run",
    "CHECKPOINT": "run",
    "FIRST": "run",
    "SECOND": "run",
    "CONFIG": "yaml",
    "DIR": "folder",
    "FILE": "file",
    "OUT": "file",
    "PROGRAM": "file",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option (with its names) or a place in the command line: what completes it, "" where nothing does."""

    names: tuple[str, ...]
    kind: str  # run, yaml, folder, file, words, flag or ""
    words: tuple[str, ...]
    help: str
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the commands in it, its options and its places."""

    path: tuple[str, ...]
    commands: dict[str, str]  # with what they do
    options: tuple[Argument, ...]
    places: tuple[Argument, ...]


def add_to(parsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command."""
    what = "Print a script that completes commands in a shell."
    parser = add_command(parsers, common, "completion", run=completion_command, what=what, more=MORE, example=EXAMPLE)
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def completion_command(options: argparse.Namespace) -> int:
    from .app import build_parser
    from .completion_scripts import bash_script, fish_script, zsh_script

    write = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}[options.shell]
    print(write(list(commands_of(build_parser()))), end="")
    return OK


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """A parser and all parsers in it, as what can be completed."""
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    inner = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    helps = {choice.dest: choice.help or "" for action in inner for choice in action._choices_actions}
    children = {name: child for action in inner for name, child in action.choices.items()}
    plain = [_argument(action) for action in actions if action not in inner]
    yield Command(
        path,
        {name: helps.get(name, "") for name in children},
        tuple(argument for argument in plain if argument.names),
        tuple(argument for argument in plain if not argument.names),
    )
    for name, child in children.items():
        yield from commands_of(child, (*path, name))


def _argument(action: argparse.Action) -> Argument:
    words = tuple(map(str, action.choices or ()))
    kind = "words" if words else KINDS.get(str(action.metavar), "")
    names = tuple(action.option_strings)
    is_flag = bool(names) and action.nargs == 0
    return Argument(
        names, "flag" if is_flag else kind, words, (action.help or "").replace("%%", "%"), action.nargs in ("+", "*")
    )
