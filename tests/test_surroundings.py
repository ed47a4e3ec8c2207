"""What every test is promised by `conftest.py`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_the_current_folder_is_outside_the_checkout_and_empty_whatever_an_earlier_test_left(turn):
    assert os.listdir() == []
    assert not Path.cwd().is_relative_to(ROOT)
    Path("runs", turn).mkdir(parents=True)
    Path("checkpoint").touch()
    Path("link").symlink_to("runs")


def test_the_current_folder_is_the_one_of_the_processes_that_a_test_starts():
    program = [sys.executable, "-c", "import os; print(os.getcwd())"]
    assert (
        subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()
        == os.getcwd()
    )
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(os.getcwd).result() == os.getcwd()


def test_a_suite_without_a_browser_says_at_its_end_what_was_not_run_and_how_to_have_it():
    command = [sys.executable, "-m", "pytest", "-n", "1", "tests/browser/test_live.py"]
    nowhere = os.environ | {"LOOPWRIGHT_CHROMIUM": "/nowhere/chromium"}
    done = subprocess.run(
        command, cwd=ROOT, env=nowhere, capture_output=True, text=True, timeout=300, check=True
    )
    *_, tests, reason, counts = done.stdout.splitlines()
    number = tests.partition(" ")[0].count("s")
    assert number > 1
    assert reason.startswith(
        f"not run: {number} tests: the live page needs a browser, and there is none at /nowhere/"
    )
    assert "apt-get install chromium" in reason
    assert f"{number} skipped" in counts
