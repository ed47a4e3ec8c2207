"""Commands and options as people mistype them: what is said, and what is done all the same."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.cli import main
from tests.cli.projects import Shell

MISTYPED = [
    ("shwo", "there is no 'shwo': did you mean show?"),
    ("SHOW", "there is no 'SHOW': did you mean show?"),
    ("xyzzy", "there is no 'xyzzy': available: batch-size-find, check, "),
    ("checkpoint lsit", "there is no 'lsit': did you mean list?"),
    ("show --jsn", "`loopwright show` does not take '--jsn'. Did you mean --json?"),
    ("train run.yaml --accept_changes", "Did you mean --accept-changes?"),
    ("show --ROOT runs", "Did you mean --root?"),
    ("train run.yaml --trainer.max_epochs=5", "has no dashes: trainer.max_epochs=5"),
    ("show first second", "does not take 'second'.\nusage: loopwright show [RUN] [options]"),
    (
        "predict",
        "the following arguments are required: --data, -o/--output\n"
        "usage: loopwright predict [RUN] --data KEY",
    ),
    ("runs --limit much", "argument --limit: invalid int value: 'much'"),
]


@pytest.mark.parametrize(("words", "message"), MISTYPED)
def test_what_is_mistyped_is_answered_with_what_was_meant(
    words: str, message: str, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("loopwright: ")
    assert message in printed.err


@pytest.mark.parametrize(
    "words", [["help", "show"], ["show", "--help"], ["show", "-h"], ["show", "x", "-h"]]
)
def test_help_can_be_asked_for_in_several_ways(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: loopwright show [RUN] [options]\n")


@pytest.mark.parametrize("group", ["config", "checkpoint"])
def test_a_group_of_commands_alone_prints_its_help(group: str, shell: Shell) -> None:
    assert shell(group) == 0
    assert shell.out.startswith(f"usage: loopwright {group} COMMAND ... [options]\n")
