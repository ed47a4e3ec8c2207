"""The types of the public interface: mypy and pyright accept right programs and refuse wrong
ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import loopwright

BIN = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
CONSUMER = Path(__file__).with_name("consumer.py")
# Of Loopwright the signatures are read, and of torch nothing: half a minute becomes three seconds.
# `make lint` has all.
SETTINGS = """
[mypy]
strict = true
mypy_path = {source}
[mypy-loopwright.*]
ignore_errors = true
[mypy-torch.*,numpy.*,pydantic.*,rich.*]
follow_imports = skip
"""


def errors_of(program: Path, folder: Path) -> list[str]:
    settings = folder / "mypy.ini"
    settings.write_text(SETTINGS.format(source=Path(loopwright.__file__).parents[1]))
    options = (
        "--config-file",
        settings,
        "--cache-dir",
        folder / "cache",
        "--no-error-summary",
        "--hide-error-context",
    )
    command = [sys.executable, "-m", "mypy", *map(str, options), str(program)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout.splitlines()


def program_of(folder: Path) -> tuple[Path, set[str]]:
    """The program without its comments on errors, and its wrong lines."""
    lines = [line.partition("  # type: ignore") for line in CONSUMER.read_text().splitlines()]
    program = folder / "program.py"
    program.write_text("\n".join(line for line, _, _ in lines))
    wrong = {line for line, mark, _ in lines if mark}
    assert len(wrong) >= 20
    return program, wrong


def test_mypy_refuses_each_wrong_line_of_a_program_and_no_other(tmp_path):
    program, wrong = program_of(tmp_path)
    lines = program.read_text().splitlines()
    errors = [error for error in errors_of(program, tmp_path) if ": error: " in error]
    assert {lines[int(error.split(":")[1]) - 1] for error in errors} ^ wrong == set()


@pytest.mark.skipif(
    shutil.which("pyright", path=BIN) is None,
    reason="pyright is not installed here: its package fetches the program from npm when it is "
    "first run",
)
def test_pyright_refuses_each_wrong_line_of_a_program_and_no_other(tmp_path):
    program, wrong = program_of(tmp_path)
    settings = {
        "typeCheckingMode": "strict",
        "include": [program.name],
        "extraPaths": [str(Path(loopwright.__file__).parents[1])],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [shutil.which("pyright", path=BIN), "--outputjson", "--pythonpath", sys.executable]
    answer = json.loads(
        subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    )
    assert answer["summary"]["filesAnalyzed"] == 1
    lines = program.read_text().splitlines()
    assert {
        lines[error["range"]["start"]["line"]] for error in answer["generalDiagnostics"]
    } ^ wrong == set()
