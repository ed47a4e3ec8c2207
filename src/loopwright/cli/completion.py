"""`loopwright completion bash|zsh|fish|tcsh`: a script that shtab makes from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from .app import build_parser
from .output import OK

KINDS = {  # what completes an argument, by its name in the help
    "RUN": "run",
    "CHECKPOINT": "run",
    "FIRST": "run",
    "SECOND": "run",
    "WHICH": "which",
    "CONFIG": "yaml",
    "DIR": "folder",
    "FILE": "file",
    "OUT": "file",
    "PROGRAM": "file",
}

# Names of files are only compared and printed, never expanded: a folder may be called `$(rm -r .)`.
FIND_RUNS = r"find -L runs -maxdepth 5 -name run.json 2>/dev/null"
BASH_RUNS = rf"""
_loopwright_run_dirs() {{  # runs that begin with $1; folders, where none does
  local run found=""
  while IFS= read -r run; do
    if [[ $run == "$1"* ]]; then printf '%s\n' "$run"; found=1; fi
  done < <(echo last; {FIND_RUNS} | sed 's|/run\.json$||')
  if [[ -z $found ]]; then compgen -d -- "$1"; fi
}}
"""
ZSH_RUNS = rf"""
_loopwright_run_dirs() {{
  local -a found
  found=(last ${{(f)"$({FIND_RUNS} | sed 's|/run\.json$||')"}})
  compadd -a found
  _files -/
}}
"""
FISH_RUNS = rf"""
function __loopwright_run_dirs
  echo last
  {FIND_RUNS} | string replace -r '/run\.json$' ''
  __fish_complete_directories (commandline -ct)
end
"""
RUNS: dict[str, Any] = {
    "bash": "_loopwright_run_dirs",
    "zsh": "_loopwright_run_dirs",
    "fish": "(__loopwright_run_dirs)",
    "tcsh": "d",  # has no functions: folders only
    "preamble": {"bash": BASH_RUNS, "zsh": ZSH_RUNS, "fish": FISH_RUNS},
}
CHECKPOINTS: dict[str, Any] = {
    "bash": "_loopwright_which",
    "zsh": "(best newest)",
    "fish": "(printf '%s\\n' best newest)",
    "tcsh": "d",
    "preamble": {"bash": '\n_loopwright_which() { compgen -W "best newest" -- "$1"; }\n'},
}
BASH_EQUALS = r"""
_loopwright() {  # bash makes three words of --option=value, of which shtab's function is to see two
  local -a words=()
  local i
  for ((i = 0; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} != "=" ]]; then words+=("${COMP_WORDS[i]}"); fi
  done
  local last="${COMP_WORDS[COMP_CWORD]}"
  if [[ $last == "=" ]]; then last=""; fi
  local -a COMP_WORDS=("${words[@]}" "$last")
  local COMP_CWORD=${#words[@]}
  _shtab_loopwright
}
complete -F _loopwright loopwright
"""


def completion_command(options: argparse.Namespace) -> int:
    import shtab

    parser = build_parser()
    completers = {
        "run": RUNS,
        "which": CHECKPOINTS,
        "yaml": shtab.glob("*.yaml", "*.yml"),
        "folder": shtab.DIRECTORY,
        "file": shtab.FILE,
    }
    for _, action in actions_of(parser):
        kind = KINDS.get(str(action.metavar))
        if kind is not None and not action.choices:
            # where shtab looks for it
            action.complete = completers[kind]  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    if options.shell == "bash":
        print(BASH_EQUALS, end="")
    return OK


def actions_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.Action]]:
    """All arguments of a parser and its commands, each with the path of its command."""
    for action in parser._actions:
        yield path, action
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from actions_of(command, (*path, name))
