"""What a run stands on: packages, machine, uncommitted changes, and the log and data it is known
by."""

import logging
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from loopwright.run import RunManifest
from loopwright.run.directory import logging_to, run_logger
from loopwright.run.manifest import describe_hardware, uncommitted_diff
from loopwright.training.fingerprint import fingerprint

IDENTITY = {
    f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr("loopwright.run.manifest.SECONDS_FOR_DIFF", 300.0)
    if shutil.which("git") is None:
        pytest.skip("there is no git")

    def git(*arguments):
        subprocess.run(
            ["git", *arguments],
            cwd=tmp_path,
            env=os.environ | IDENTITY,
            check=True,
            capture_output=True,
        )

    git("init")
    (tmp_path / "train.py").write_text("one\n")
    git("add", ".")
    git("commit", "-m", "one")
    return tmp_path


def test_the_machine_is_described_in_what_json_can_hold(tmp_path):
    hardware = describe_hardware()
    assert hardware["cpus"] == os.cpu_count()
    manifest = RunManifest.collect(name="a", tags=["b"], data={"train": {"length": 3}})
    manifest.write(tmp_path / "run.json")
    read = RunManifest.read(tmp_path / "run.json")
    assert read == manifest
    assert (read.name, read.tags, read.data, read.hardware) == (
        "a",
        ["b"],
        {"train": {"length": 3}},
        hardware,
    )


def test_the_diff_applies_to_the_commit(repository):
    (repository / "train.py").write_bytes(bytes(range(256)))
    diff = uncommitted_diff(repository)
    subprocess.run(["git", "checkout", "."], cwd=repository, check=True, capture_output=True)
    subprocess.run(
        ["git", "apply", "-"], cwd=repository, input=diff, check=True, capture_output=True
    )
    assert (repository / "train.py").read_bytes() == bytes(range(256))


def test_outside_a_repository_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert uncommitted_diff(tmp_path) is None


# Fingerprints

VALUES = [
    torch.zeros(3),
    torch.zeros(3, dtype=torch.float64),
    torch.zeros(1, 3),
    torch.tensor([0.0, -0.0, 1.0]),
    torch.zeros(3, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.tensor(0.0),
    torch.empty(0),
    np.zeros(3),
    [0.0, 0.0, 0.0],
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"a": 1, "b": "2"},
    "text",
    None,
    1,
    True,
    [[], []],
    [[[]]],
]


def test_different_values_have_different_fingerprints():
    assert len({fingerprint(value) for value in VALUES}) == len(VALUES)


def test_a_fingerprint_is_the_same_in_every_process_and_on_every_day():
    assert fingerprint({"x": torch.arange(5), "y": ["a", 2.5]}) == "b4577196364f3b72"


# The log


def test_a_log_has_what_is_logged_meanwhile_and_nothing_else(tmp_path):
    path = tmp_path / "log.txt"
    with logging_to(path):
        run_logger.info("inside")
        logging.getLogger("elsewhere").warning("heard too")
    logging.getLogger("elsewhere").warning("outside")
    text = path.read_text()
    assert "INFO loopwright.run: inside" in text
    assert "heard too" in text
    assert "outside" not in text


def test_warnings_are_still_printed_where_nobody_set_up_logging(tmp_path):
    program = (
        "import logging; from pathlib import Path\n"
        "from loopwright.run.directory import logging_to, run_logger\n"
        "with logging_to(Path('log.txt')):\n"
        "    run_logger.info('quiet'); logging.getLogger('loopwright').warning('loud')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr == "loud\n"
