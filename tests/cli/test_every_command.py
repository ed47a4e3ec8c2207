"""Every command as a process, on a terminal and in a pipe: what it is for happens, and it ends with
the right code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.cli.app import build_parser
from tests.cli.helpers import run_on_terminal
from tests.forked import call_forked

COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "init": (["init", "new", "--interface", "simple"], 0, r"Wrote .*new"),
    "train": (
        ["train", "run.yaml", "trainer.max_epochs=1", "name=again"],
        0,
        r"Best model: runs/again/",
    ),
    "eval": (["eval", "last~1"], 0, r"test_loss +\d"),
    "predict": (["predict", "last~1", "--data", "test", "-o", "out.npy"], 0, r"out\.npy"),
    "config show": (["config", "show", "run.yaml"], 0, r"width: 64"),
    "config show as JSON": (["config", "show", "run.yaml", "--json"], 0, r'"width": 64'),
    "config validate": (["config", "validate", "run.yaml"], 0, r"run\.yaml"),
    "runs": (["runs"], 0, r"first.*finished"),
    "watch": (["watch", "last~1", "--once"], 0, r"first +finished"),
    "show": (["show", "last~1"], 0, r"state +finished"),
    "show the last run": (["show"], 0, r"name +second"),
    "report": (["report", "last~1", "last", "-o", "two.html"], 0, r"two\.html: 2 runs, \d"),
    "diff": (["diff", "last~1", "last"], 1, r"model\.width: 64 -> 8"),
    "diff of the last two": (["diff"], 1, r"model\.width: 64 -> 8"),
    "query": (
        ["query", "last", "SELECT count(*) AS rows, max(step) AS steps FROM metrics"],
        0,
        r"rows +steps",
    ),
    "query of the last run": (["query", "SELECT max(epoch) AS epochs FROM epochs"], 0, "epochs"),
    "plot of the loss": (["plot"], 0, r"loss, test_loss of second: loss\.png"),
    "plot": (["plot", "last", "last~1", "--metric", "loss", "-o", "curve.png"], 0, r"curve\.png"),
    "plot in text": (["plot", "last", "--metric", "loss", "--text"], 0, r"loss"),
    "export": (["export", "last~1", "-o", "weights.safetensors"], 0, r"weights\.safetensors"),
    "checkpoint": (["checkpoint", "list", "last~1"], 0, r"update-"),
    "check": (["check", "run.yaml"], 0, r"No mistakes found"),
    "sweep": (["sweep", "run.yaml", "model.width=4"], 2, r"nothing-to-sweep"),
    "lr-find": (["lr-find", "run.yaml", "--updates", "12"], 0, r"Suggestion"),
    "batch-size-find": (["batch-size-find", "run.yaml", "--max", "4"], 0, r"Largest: 4"),
    "tune": (
        ["tune", "run.yaml", "--only", "precision", "--seconds", "0.1"],
        0,
        r"current settings",
    ),
    "doctor": (["doctor"], 0, r"versions"),
}
SERVING = {"ui"}  # goes on until Ctrl-C: tests/cli/test_ui.py


def run(arguments: Sequence[str], folder: Path, *, on_terminal: bool) -> tuple[int, str]:
    """A command in a process of its own; its exit code, and all it wrote."""
    if on_terminal:
        return run_on_terminal(*arguments, columns=80, group=(), folder=folder)
    ended = call_forked(lambda: main(arguments), folder)
    return ended.code, ended.out + ended.err


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was started by `init`, with two runs."""
    folder = tmp_path_factory.mktemp("projects")
    assert run(["init", "points", "--interface", "configured"], folder, on_terminal=False)[0] == 0
    for name, width in (("first", 64), ("second", 8)):
        overrides = [
            f"name={name}",
            f"+output_path=runs/{name}",
            f"model.width={width}",
            "trainer.max_epochs=2",
            "--progress",
            "silent",
        ]
        assert run(["train", "run.yaml", *overrides], folder / "points", on_terminal=False)[0] == 0
    return folder / "points"


def test_no_command_is_forgotten_here() -> None:
    commands = next(
        action for action in build_parser()._actions if action.choices and action.dest != "help"
    )
    assert {name.split()[0] for name in COMMANDS} | SERVING == set(commands.choices or ())


@pytest.mark.parametrize("place", ["terminal", "pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_what_it_is_for(
    name: str, place: str, project: Path, tmp_path: Path
) -> None:
    arguments, code, expected = COMMANDS[name]
    folder = shutil.copytree(project, tmp_path / "points")
    ended, written = run(arguments, folder, on_terminal=place == "terminal")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert ended == code, plain
    assert re.search(expected, plain), plain
    assert "Traceback" not in plain
    assert place == "terminal" or plain == written  # no colours in a pipe
