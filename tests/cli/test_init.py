"""`loopwright init`: every skeleton trains as it is written, and nothing that is there is ever
overwritten."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from loopwright.cli.app import build_parser
from loopwright.cli.commands import INTERFACES
from loopwright.cli.init import template_files
from tests.cli.projects import Shell

SHORTER = {  # for these tests
    "native": ("num_epochs=20", "num_epochs=4"),
    "simple": ("num_epochs=20", "num_epochs=4"),
    "lifecycle": ("num_epochs=20", "num_epochs=4"),
    "modular": ("n_epochs=20", "n_epochs=2"),
    "adversarial": ('"train": 64', '"train": 8'),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python train.py` in its folder."""
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("interface", SHORTER)
def test_the_program_of_a_skeleton_trains(
    interface: str, folder: Path, shell: Shell, monkeypatch, capsys
):
    assert shell("init", "mine", "--interface", interface) == 0
    program = folder / "mine" / "train.py"
    before, after = SHORTER[interface]
    assert before in program.read_text()
    program.write_text(program.read_text().replace(before, after))
    run_program(program, monkeypatch)
    out = capsys.readouterr().out
    if interface in ("native", "simple", "lifecycle"):
        accuracy = re.search(r"Accuracy on points it has not seen: ([\d.]+)%", out)
        assert float(accuracy[1]) > 75
    elif interface == "modular":
        assert "from the circle on average" in out
    else:
        assert list((folder / "mine" / "runs" / "shapes_v1" / "examples").iterdir())


def test_the_configured_skeleton_goes_through_the_commands_of_its_readme(
    folder: Path, shell: Shell, monkeypatch
):
    assert shell("init", "mine") == 0
    assert "cd mine && loopwright train run.yaml" in shell.out
    monkeypatch.chdir(folder / "mine")
    assert shell("config", "validate", "run.yaml") == 0
    assert shell("train", "run.yaml", "trainer.max_epochs=4") == 0, shell.err
    found = shell.json("eval", "last", "--checkpoint", "best", "--json")
    assert found["metrics"]["test_loss"] < 0.5
    assert shell("predict", "last", "--data", "test", "--output", "out.npy") == 0
    assert "output 500 x 2" in shell.out


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_commands_in_a_readme_are_accepted(interface: str):
    text = template_files(interface)["README.md"].read_text()
    commands = [
        shlex.split(line, comments=True)
        for line in re.findall(r"^    loopwright (.+)$", text, re.M)
    ]
    for command in commands:
        if command[0] != "sweep":  # a module of its own, with tests of its own
            assert build_parser().parse_args(command).function
    assert commands


def test_no_program_is_overwritten(folder: Path, shell: Shell):
    (folder / "train.py").write_text("mine")
    assert shell("init", "--interface", "simple") == 2
    assert "already has train.py" in shell.err
    assert [path.name for path in folder.iterdir()] == ["train.py"]
    assert (folder / "train.py").read_text() == "mine"


def test_a_readme_and_a_gitignore_that_are_there_stay(folder: Path, shell: Shell):
    (folder / "README.md").write_text("mine")
    (folder / ".gitignore").write_text("mine")
    assert shell("init", "--interface", "native") == 0
    assert (folder / "README.md").read_text() == (folder / ".gitignore").read_text() == "mine"
    assert (folder / "train.py").is_file()


def test_an_interface_that_needs_an_extra_says_how_to_get_it(
    folder: Path, shell: Shell, monkeypatch
):
    def find(name: str) -> object:
        return None if name == "PIL" else find_spec(name)

    monkeypatch.setattr("loopwright.cli.init.find_spec", find)
    assert shell("init", "gan", "--interface", "adversarial") == 0
    assert shell.out.splitlines()[-2:] == [
        "    pip install 'loopwright[images]'",
        "    cd gan && python train.py",
    ]
    assert shell("init", "plain", "--interface", "native") == 0
    assert "pip install" not in shell.out
