"""Commands and options as people mistype them: what is said, and what is done all the same."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.cli import main
from loopwright.cli.app import build_parser
from loopwright.cli.parser import SYNONYMS, commands_of
from tests.cli.projects import Shell

MISTYPED = {
    "`loopwright shwo`": (["shwo"], "There is no command 'shwo'. Did you mean `loopwright show`?"),
    "`loopwright SHOW`": (["SHOW"], "There is no command 'SHOW'. Did you mean `loopwright show`?"),
    "`loopwright fit`": (["fit"], "There is no command 'fit'. Did you mean `loopwright train`?"),
    "`loopwright xyzzy`": (["xyzzy"], "There is no command 'xyzzy'. The commands are: init, "),
    "`loopwright train.py`": (
        ["train.py"],
        "train.py is a Python program, not a command. Start it with: python train.py",
    ),
    "`loopwright run.yaml`": (
        ["run.yaml"],
        "run.yaml is a run file, not a command. Train it with: loopwright train run.yaml",
    ),
    "`loopwright checkpoint lsit`": (
        ["checkpoint", "lsit"],
        "`checkpoint` has no command 'lsit'. Did you mean `loopwright checkpoint list`?",
    ),
    "`loopwright show --jsn`": (
        ["show", "--jsn"],
        "`show` has no option --jsn. Did you mean --json?",
    ),
    "`loopwright train --accept_changes`": (
        ["train", "run.yaml", "--accept_changes"],
        "`train` has no option --accept_changes. Did you mean --accept-changes?",
    ),
    "`loopwright show --ROOT runs`": (
        ["show", "--ROOT", "runs"],
        "`show` has no option --ROOT. Did you mean --root?",
    ),
    "`loopwright eval --ckpt_path best`": (
        ["eval", "--ckpt_path", "best"],
        "`eval` has no option --ckpt_path. Did you mean --checkpoint?",
    ),
    "`loopwright train run.yaml --trainer.max_epochs=5`": (
        ["train", "run.yaml", "--trainer.max_epochs=5"],
        "Values of the run file are changed without dashes: trainer.max_epochs=5",
    ),
    "`loopwright train run.yaml --run-dir runs/first`": (
        ["train", "run.yaml", "--run-dir", "runs/first"],
        "The run file names the run directory (output_path: DIR); here it is +output_path=DIR.",
    ),
    "`loopwright show first second`": (
        ["show", "first", "second"],
        "`show` does not take 'second'.\nusage: loopwright show [RUN] [options]",
    ),
    "`loopwright export first first.pt`": (
        ["export", "first", "first.pt"],
        "`export` does not take 'first.pt'. Did you mean -o first.pt?",
    ),
    "`loopwright predict` without `--data`": (
        ["predict"],
        "the following arguments are required: --data, -o/--output\nusage: loopwright predict "
        "[RUN] --data KEY",
    ),
    "`loopwright plot --smooth much`": (
        ["plot", "--smooth", "much"],
        "argument --smooth: invalid int value: 'much'",
    ),
}


@pytest.mark.parametrize("what", MISTYPED)
def test_what_is_mistyped_is_answered_with_what_was_meant(
    what: str, capsys: Any, mistake: Any
) -> None:
    arguments, message = MISTYPED[what]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("loopwright: ")
    assert message in printed.err
    mistake.said("Command line", what, printed.err)


def test_every_synonym_leads_to_a_command() -> None:
    commands = commands_of(build_parser())
    assert [name for name in SYNONYMS if name in commands] == []
    assert {words.split()[0] for words in SYNONYMS.values()} <= {*commands, "--version"}


@pytest.mark.parametrize(
    "words", [["help", "show"], ["show", "--help"], ["show", "-h"], ["show", "x", "-h"]]
)
def test_help_can_be_asked_for_in_several_ways(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: loopwright show [RUN] [options]\n")


@pytest.mark.parametrize("words", [["help"], ["-h"], ["--help"]])
def test_help_alone_lists_the_commands(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    assert capsys.readouterr().out == build_parser().format_help()


@pytest.mark.parametrize("group", ["config", "checkpoint"])
def test_a_group_of_commands_alone_prints_its_help(group: str, shell: Shell) -> None:
    assert shell(group) == 0
    assert shell.out.startswith(f"usage: loopwright {group} COMMAND ... [options]\n")


def test_arguments_of_a_program_are_its_own(tmp_path: Any, shell: Shell) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit(sys.argv[1:] != ['--epohs', '3'])\n")
    assert shell("check", str(tmp_path / "train.py"), "--epohs", "3") == 2
    assert "exited with code False before it trained" in shell.err
