"""What every test has: the same surroundings wherever and after whatever it runs; small data."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

# Before torch is imported: one thread, here and in every process, so that sums are added in one
# order.
os.environ["OMP_NUM_THREADS"] = "1"
# What a terminal, a shell or a service that runs tests may have set: it changes what is printed, or
# who one is.
for _name in (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
):
    os.environ.pop(_name, None)
for _name in (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "BASH_ENV",
    "LOOPWRIGHT_RUN_DIR",
):
    os.environ.pop(_name, None)
os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
# Files are in memory where it has room: thousands of checkpoints are synced, for which a busy disk
# takes its time.
if os.access(_memory := "/dev/shm", os.W_OK) and shutil.disk_usage(_memory).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _memory)
# which a shell that starts us in the background has ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
# Loader workers are forked, as before Python 3.14: a fork server imports torch, and has no classes
# of test functions.
if sys.version_info >= (3, 14) and sys.platform == "linux":
    multiprocessing.set_start_method("fork")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import loopwright.data.random  # noqa: E402
from tests.mistakes import Mistakes  # noqa: E402

torch.set_num_threads(1)

# The same examples every time, and no opinion on how long one may take.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def _current_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the tests' own, here and in the processes they start: what lies in the checkout
    is not found."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("current")
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = str(folder)  # where processes that are not forked begin
    yield folder
    os.chdir(before)


@pytest.fixture(autouse=True)
def _empty_folder(_current_folder: Path) -> Iterator[None]:
    """Empty for every test, since a folder for each of thousands of tests would take seconds."""
    yield
    os.chdir(_current_folder)
    for left in os.scandir(_current_folder):
        shutil.rmtree(left) if left.is_dir(follow_symlinks=False) else os.unlink(left)


@pytest.fixture(autouse=True)
def _random_numbers(request: pytest.FixtureRequest) -> None:
    """The same in every run of a test, whatever ran before it."""
    seed = crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    # no `seed_everything` of another test
    loopwright.data.random._last = loopwright.data.random.Seed(0, "default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what was not run and why: without a browser, for instance, it was not the
    whole suite."""
    reports = terminalreporter.getreports("skipped")
    for reason, number in Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in reports
    ).items():
        terminalreporter.write_line(f"not run: {number} test{'s' if number > 1 else ''}: {reason}")


@pytest.fixture
def mistake() -> Mistakes:
    """Make a mistake and match the sentence of its error."""
    return Mistakes()


@pytest.fixture
def points() -> TensorDataset:
    """37 points of 6 numbers in three classes: a prime number, so that every batch size leaves a
    short batch."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(37, 6, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long())


@pytest.fixture
def rare_log_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """No log point because of a slow machine in the middle of counting, or of noting events."""
    monkeypatch.setattr("loopwright.training.steps.FLUSH_SECONDS", 1e9)
    monkeypatch.setattr("loopwright.training.evaluate.LOG_SECONDS", 1e9)
