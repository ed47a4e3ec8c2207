"""Signals to real processes: the update is finished, the run is saved, the exit code says which
signal it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import TensorDataset

from loopwright import Callback, Trainer
from loopwright.checkpoint import list_checkpoints

from ..loops import build_net
from ..runs import adam, cross_entropy
from .crashing import Crashes, Processes, differing

# nothing is saved but at the end, and when asked for
OPTIONS = [
    "--accumulate",
    "2",
    "--every",
    "0",
]


def updates_in(run_dir: Path) -> list[int]:
    return [
        info.meta["update"]
        for info in list_checkpoints(run_dir, verify=True)
        if info.kind == "resume"
    ]


def test_handlers_are_there_while_training_and_put_back_afterwards(points: TensorDataset) -> None:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    during = []

    class Looking(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            during.append([signal.getsignal(number) for number in signals])

    before = [signal.getsignal(number) for number in signals]
    Trainer(build_net(), adam, cross_entropy, callbacks=[Looking()], progress="silent").train(
        points, num_updates=1
    )
    assert [signal.getsignal(number) for number in signals] == before
    assert not set(during[0]) & set(before)


def test_a_preempted_command_leaves_with_143_and_continues_by_itself(
    processes: Processes, other_place: Path
) -> None:
    run_dir = other_place / "preempted"
    options = [*OPTIONS, "--light"]
    command = [
        sys.executable,
        "-m",
        "tests.crash.programs.train",
        str(run_dir),
        *options,
        "--at",
        "step:5=TERM",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (143, "")
    assert updates_in(run_dir) == [3]
    expected = processes.run(str(other_place / "not preempted"), *options).digest
    assert differing(Crashes(processes, run_dir, options).finish(), expected) == []


@pytest.mark.parametrize("place", ["step:5", "eval:2"])
def test_the_first_interrupt_finishes_the_update_and_leaves_with_130(
    place: str, processes: Processes, other_place: Path
) -> None:
    run_dir = other_place / f"interrupted {place}"
    ended = processes.run(str(run_dir), *OPTIONS, "--at", f"{place}=INT")
    assert ended.code == 130
    assert updates_in(run_dir) == [3 if place == "step:5" else 4]
    expected = processes.run(str(run_dir.with_name(f"whole {place}")), *OPTIONS).digest
    assert differing(processes.run(str(run_dir), *OPTIONS).digest, expected) == []


def test_a_second_interrupt_ends_the_program_at_once(
    processes: Processes, other_place: Path
) -> None:
    run_dir = other_place / "interrupted twice"
    ended = processes.run(str(run_dir), *OPTIONS, "--at", "step:5=INT", "--at", "step:5=INT")
    assert ended.code not in (0, 130)
    assert "KeyboardInterrupt" in ended.output
    assert updates_in(run_dir) == []


def test_a_request_to_save_saves_and_does_not_stop(processes: Processes, other_place: Path) -> None:
    run_dir = other_place / "asked to save"
    digest = processes.run(str(run_dir), *OPTIONS, "--at", "step:5=USR1").digest
    assert updates_in(run_dir) == [3, 12]
    assert differing(digest, processes.run(str(other_place / "not asked"), *OPTIONS).digest) == []


@pytest.mark.parametrize(
    ("interface", "saved"), [("lifecycle", "states/interrupted"), ("simple", "checkpoint_latest")]
)
@pytest.mark.parametrize("place", ["step:11", "eval:5"])
def test_the_interfaces_save_and_leave_with_the_code_too(
    interface: str, saved: str, place: str, processes: Processes, other_place: Path
) -> None:
    options, run_dir = ["--interface", interface], other_place / f"{interface} {place}"
    assert processes.run(str(run_dir), *options, "--at", f"{place}=TERM").code == 143
    assert (run_dir / saved / "manifest.json").is_file()
    expected = processes.run(str(other_place / f"{interface} {place} whole"), *options).digest
    assert differing(processes.run(str(run_dir), *options).digest, expected) == []


@pytest.mark.parametrize(
    ("interface", "saved"), [("lifecycle", "states/requested"), ("simple", "checkpoint_latest")]
)
def test_the_interfaces_save_when_asked_and_go_on(
    interface: str, saved: str, processes: Processes, other_place: Path
) -> None:
    options, run_dir = ["--interface", interface], other_place / f"{interface} asked"
    crashes = Crashes(processes, run_dir, options)
    assert (
        processes.run(str(run_dir), *options, "--at", "step:3=USR1", "--at", "step:5=KILL").code
        == -signal.SIGKILL
    )
    assert (run_dir / saved / "manifest.json").is_file()
    expected = processes.run(str(other_place / f"{interface} asked whole"), *options).digest
    assert differing(crashes.finish(), expected) == []
