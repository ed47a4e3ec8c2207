"""The types of the public interface: mypy accepts right programs and refuses wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import loopwright

CONSUMER = Path(__file__).with_name("consumer.py")
# Of Loopwright the signatures are read, and of torch nothing: half a minute becomes three seconds. `make lint` has all.
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
    options = ("--config-file", settings, "--cache-dir", folder / "cache", "--no-error-summary", "--hide-error-context")
    command = [sys.executable, "-m", "mypy", *map(str, options), str(program)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout.splitlines()


def test_mypy_refuses_each_wrong_line_of_a_program_and_no_other(tmp_path):
    lines = CONSUMER.read_text().splitlines()
    program = tmp_path / "program.py"
    program.write_text("\n".join(line.partition("  # type: ignore")[0] for line in lines))
    refused = {int(error.split(":")[1]) for error in errors_of(program, tmp_path) if ": error: " in error}
    wrong = {number for number, line in enumerate(lines, start=1) if "  # type: ignore" in line}
    assert len(wrong) >= 20
    assert {lines[number - 1] for number in refused ^ wrong} == set()
