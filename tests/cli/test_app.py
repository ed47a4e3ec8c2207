"""What all commands share: help worth reading, errors without tracebacks, a quick start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loopwright.cli import main
from loopwright.cli.app import build_parser


@pytest.mark.parametrize(
    "command",
    [["show", "x"], ["diff", "x", "y"], ["plot", "x", "--metric", "m"], ["export", "x"]],
    ids=" ".join,
)
def test_an_error_is_a_line_on_stderr_and_exit_code_2(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        "loopwright: There is no run 'x'. There are no runs in runs/ (there is no such folder)."
    )
    assert "Traceback" not in printed.err
    assert main([*command, "--debug"]) == 2
    assert capsys.readouterr().err.startswith("Traceback")


def test_torch_is_not_imported_for_what_does_without(in_gallery):
    """One process for all of them: what one imports, the next would find."""
    commands = [
        ["--help"],
        ["runs"],
        ["runs", "--json", "--sort", "metric"],
        ["show", "finished"],
        ["show", "killed", "--json"],
        ["doctor", "--help"],
        ["export", "--help"],
        ["ui", "--help"],
        # the last two: they take values as arrays
        ["plot", "finished", "--metric", "loss", "--text"],
        ["diff", "finished", "twin"],
    ]
    program = f"""
import contextlib, io, json, sys
from loopwright.cli import main
results = []
for command in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(command)
        except SystemExit as leaving:
            code = leaving.code
    results.append([command, code, [name for name in ("torch", "numpy", "matplotlib", "rich") if name in sys.modules]])
print(json.dumps(results))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    results = json.loads(done.stdout)
    *others, plot, diff = [imported for _, _, imported in results]
    assert others == [[]] * (len(commands) - 2)
    assert (plot, diff) == (["numpy", "rich"], ["numpy", "rich"])
    assert [code for _, code, _ in results] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_module_and_command_are_the_same(in_gallery, capsys):
    done = subprocess.run(
        [sys.executable, "-m", "loopwright", "diff", "finished", "stopped"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert main(["diff", "finished", "stopped"]) == done.returncode == 1
    assert done.stdout == capsys.readouterr().out
    assert done.stderr == ""


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.out == build_parser().format_help()
    assert printed.err == ""
