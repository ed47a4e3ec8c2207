"""Runs whose files are far larger, or nested deeper, than Loopwright writes them: named in a line,
and not read."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.run.files import MAX_NAMES

SIZE = 500_000_000
FILES = (
    "run.json",
    "config.yaml",
    "profile.json",
    "checkpoints/*/manifest.json",
    "kept/*/manifest.json",
)
PEAK = 250_000  # kilobytes: reading one of the files would take twice its size
COMMANDS = [
    ["runs", "."],
    ["show", "large"],
    ["show", "large", "--json"],
    ["diff", "large", "first"],
    ["plot", "large", "first"],
    ["report", ".", "-o", "report.html"],
    ["watch", "large", "--once"],
    ["checkpoint", "list", "large"],
    ["checkpoint", "verify", "large"],
]


@pytest.fixture(scope="module")
def folder(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `first`, which is sound, `large`, all of whose files are large, and `held`, whose
    lock is."""
    folder = tmp_path_factory.mktemp("large")
    for name in ("first", "large", "held"):
        shutil.copytree(finished / "first", folder / name)
    (folder / "large" / "config.yaml").touch()
    (folder / "large" / "profile.json").touch()
    for pattern in FILES:
        found = list((folder / "large").glob(pattern))
        assert found, pattern
        for path in found:
            os.truncate(path, SIZE)
    manifest = folder / "held" / "run.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"state": "running"}))
    os.truncate(folder / "held" / ".lock", SIZE)
    return folder


PROGRAM = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: print(Path("/proc/self/status").read_text(), file=sys.stderr))
from loopwright.cli.app import main
sys.exit(main())
"""


def call(folder: Path, *arguments: str) -> tuple[int, str, int]:
    """A command in a process of its own: exit code, output, and the most memory that it had, in
    kilobytes."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    peak = re.search(r"VmHWM:\s+(\d+) kB", ended.stderr)
    assert peak is not None, ended.stderr
    return ended.returncode, ended.stdout + ended.stderr, int(peak[1])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_command_reads_a_file_of_a_run_that_is_far_too_large(folder, arguments):
    code, output, peak = call(folder, *arguments)
    assert "Traceback" not in output
    assert code in (0, 1, 2)
    assert peak < PEAK


def test_the_file_is_named_with_its_size_and_the_other_runs_are_listed(folder):
    code, output, _ = call(folder, "runs", ".")
    assert code == 0
    assert f"{folder}/large/run.json has 500,000,000 bytes and is not read" in output
    assert "first" in output
    assert "held" in output
    code, output, _ = call(folder, "checkpoint", "list", "large")
    assert "manifest.json has 500,000,000 bytes and is not read" in output


def nest(run: Path) -> None:
    """Deep enough for a reader that calls itself to fail, and not for Python's own JSON."""
    value: object = 1
    for _ in range(900):
        value = {"a": value}
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"config": value}))


def nest_deeper(run: Path) -> None:
    (run / "run.json").write_text("[" * 100_000)


def change_metrics(*statements: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with sqlite3.connect(run / "metrics.sqlite") as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return change


TEXT = "(SELECT replace(hex(zeroblob(20000000)), '00', 'xx'))"  # of 40 million characters
NAMES = f"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT {MAX_NAMES})"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "nested": (nest, "nested more than 100 levels deep"),
    "nested deeper": (nest_deeper, "not valid JSON"),
    "a name": (
        change_metrics(
            f"INSERT INTO names (name) VALUES ({TEXT})",
            "INSERT INTO epoch_values SELECT max(id), 1, 1, 1.0, NULL FROM names",
        ),
        "texts of more than 33,554,432 bytes are not read",
    ),
    "a text": (
        change_metrics(
            "INSERT INTO media (name, kind, step, position, content) VALUES ('a', 'text', 1, 0, "
            f"{TEXT})"
        ),
        "texts of more than 33,554,432 bytes are not read",
    ),
    "names": (
        change_metrics(f"{NAMES} INSERT INTO names (name) SELECT 'metric' || i FROM c"),
        "more than 100,000 names of metrics",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_report_names_a_run_that_cannot_be_read_and_has_the_others(finished, tmp_path, damage):
    for name in ("first", "bad"):
        shutil.copytree(finished / "first", tmp_path / name)
    act, line = DAMAGES[damage]
    act(tmp_path / "bad")
    code, output, peak = call(tmp_path, "report", ".", "-o", "report.html")
    assert code == 0, output
    assert "2 runs" in output
    assert line in output
    assert peak < PEAK
