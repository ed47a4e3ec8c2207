"""Completion: scripts that shtab makes from the parser, and what shells offer with them."""

from __future__ import annotations

import re
import subprocess

import pytest

from loopwright.cli import main
from loopwright.cli.app import build_parser
from loopwright.cli.commands import SHELLS
from loopwright.cli.completion import actions_of

DRIVER = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_loopwright
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path, monkeypatch, capsys):
    """What bash offers for the last of some words, in a folder with runs and configs."""
    for name in ("runs/first", "runs/group/second one", "runs/$(touch hacked)", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("first", "group/second one", "$(touch hacked)"):
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    for name in ("train.yaml", "notes.txt", "other/deep.yml"):
        (tmp_path / name).write_text("")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "other" / "loopwright.bash"
    script.write_text(capsys.readouterr().out)

    def offered(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", DRIVER, "bash", str(script), "loopwright", *words]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stderr == ""
        return sorted(filter(None, done.stdout.split("\n")))

    offered.folder = tmp_path
    return offered


def test_bash_offers_the_commands(bash):
    commands = {path[0] for path, _ in actions_of(build_parser()) if path}
    assert bash("") == sorted(commands)
    assert bash("doc") == ["doctor"]


def test_bash_offers_options_of_the_command_that_is_typed(bash):
    assert bash("diff", "a", "b", "--s") == ["--strict"]
    assert bash("checkpoint", "show", "--j") == ["--json"]
    assert bash("show", "--t") == []


def test_bash_offers_choices_of_an_option(bash):
    assert bash("export", "x", "--format", "") == ["onnx", "safetensors", "torch"]
    assert bash("export", "x", "--format", "=", "o") == ["onnx"]
    assert bash("completion", "") == ["bash", "fish", "tcsh", "zsh"]


def test_bash_offers_run_directories(bash):
    assert bash("show", "runs/f") == ["runs/first"]
    assert bash("diff", "runs/first", "runs/group/s") == ["runs/group/second one"]
    assert bash("show", "l") == ["last"]
    assert bash("plot", "--metric", "loss", "runs/first", "runs/fi") == ["runs/first"]


def test_names_of_files_are_not_executed(bash):
    assert bash("show", "runs/$") == ["runs/$(touch hacked)"]
    assert not (bash.folder / "hacked").exists()


def test_bash_offers_files_and_folders(bash):
    assert bash("runs", "oth") == ["other"]
    assert bash("checkpoint", "export", "runs/first", "") == [
        "notes.txt",
        "other",
        "runs",
        "train.yaml",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_of_the_parser_is_in_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for path, action in actions_of(build_parser()):
        assert all(re.search(rf"\b{re.escape(name)}\b", script) for name in path)
        for name in action.option_strings:
            word = name.lstrip("-") if shell in ("fish", "tcsh") else name
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", script), (path, name)
